// A program that looks up names by Go's own resolver; built without C.
//
// lookup KIND,NAME,TIMES,PAUSE_MS...   KIND: host, inet, inet6, srv, txt
// One line of JSON for each look-up: {"got": ["10.0.0.1"], "error": ""}
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

func addresses(network, name string) ([]string, error) {
	var got []string
	found, err := net.DefaultResolver.LookupIP(context.Background(), network, name)
	for _, one := range found {
		got = append(got, one.String())
	}
	return got, err
}

func lookUp(kind, name string) ([]string, error) {
	switch kind {
	case "inet":
		return addresses("ip4", name)
	case "inet6":
		return addresses("ip6", name)
	case "txt":
		return net.LookupTXT(name)
	case "srv":
		var got []string
		_, found, err := net.LookupSRV("", "", name)
		for _, one := range found {
			got = append(got, fmt.Sprintf("%d %d %d %s", one.Priority, one.Weight, one.Port, strings.TrimSuffix(one.Target, ".")))
		}
		return got, err
	default:
		return net.LookupHost(name)
	}
}

func word(err error) string {
	var dns *net.DNSError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no name"
	case errors.As(err, &dns) && dns.IsTemporary:
		return "try again"
	default:
		return err.Error()
	}
}

func main() {
	for _, argument := range os.Args[1:] {
		words := strings.Split(argument, ",")
		times, _ := strconv.Atoi(words[2])
		pause, _ := strconv.Atoi(words[3])
		for turn := 0; turn < times; turn++ {
			if turn > 0 {
				time.Sleep(time.Duration(pause) * time.Millisecond)
			}
			got, err := lookUp(words[0], words[1])
			quoted := make([]string, len(got))
			for at, one := range got {
				quoted[at] = strconv.Quote(one)
			}
			fmt.Printf("{\"got\": [%s], \"error\": %q}\n", strings.Join(quoted, ", "), word(err))
		}
	}
}
