// CoreDNS with only the plugins that the bench asks, so that nothing else runs in it. Without errors: it deepens the stack
// of each query so much that Go must grow it, which costs half as much CPU again.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/hosts"
)

func main() {
	dnsserver.Directives = []string{"bind", "cache", "hosts", "file", "forward"}
	coremain.Run()
}
