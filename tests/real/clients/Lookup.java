import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Hashtable;
import java.util.List;
import java.util.StringJoiner;
import javax.naming.NameNotFoundException;
import javax.naming.NamingException;
import javax.naming.directory.Attribute;
import javax.naming.directory.InitialDirContext;

/**
 * A program that looks up names as Java programs do: InetAddress, and the DNS of JNDI.
 *
 * <p>Lookup KIND,NAME,TIMES,PAUSE_MS... with KIND: host (InetAddress), a, aaaa, srv, txt (JNDI). One line of JSON for each
 * look-up: {"got": ["10.0.0.1"], "error": ""}
 */
public class Lookup {
    static List<String> byInetAddress(String name) throws UnknownHostException {
        List<String> got = new ArrayList<>();
        for (InetAddress one : InetAddress.getAllByName(name)) {
            got.add(one.getHostAddress());
        }
        return got;
    }

    static List<String> byJndi(InitialDirContext dns, String kind, String name) throws NamingException {
        List<String> got = new ArrayList<>();
        Attribute records = dns.getAttributes(name, new String[] {kind.toUpperCase()}).get(kind);
        for (int at = 0; records != null && at < records.size(); at++) {
            got.add(records.get(at).toString().replaceAll("\\.$", ""));
        }
        return got;
    }

    static String line(InitialDirContext dns, String kind, String name) {
        StringJoiner got = new StringJoiner(", ");
        String error = "";
        try {
            for (String one : kind.equals("host") ? byInetAddress(name) : byJndi(dns, kind, name)) {
                got.add('"' + one.replace("\\", "\\\\").replace("\"", "\\\"") + '"');
            }
        } catch (UnknownHostException | NameNotFoundException wrong) {
            error = "no name";
        } catch (NamingException wrong) {
            error = wrong.getClass().getSimpleName();
        }
        return "{\"got\": [" + got + "], \"error\": \"" + error + "\"}";
    }

    public static void main(String[] arguments) throws Exception {
        Hashtable<String, String> environment = new Hashtable<>();
        environment.put("java.naming.factory.initial", "com.sun.jndi.dns.DnsContextFactory");
        InitialDirContext dns = new InitialDirContext(environment);
        for (String argument : arguments) {
            String[] words = argument.split(",");
            for (int turn = 0; turn < Integer.parseInt(words[2]); turn++) {
                if (turn > 0) {
                    Thread.sleep(Long.parseLong(words[3]));
                }
                System.out.println(line(dns, words[0], words[1]));
            }
        }
    }
}
