package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/cmd/listedge/doctor"
	"listedge/cmd/listedge/node"
	"listedge/internal/sandbox/sandboxtest"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	url := database(t)
	_, key := workspaceWithKey(t, url)
	dir := t.TempDir()
	f := node.TLSFlags{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")}
	const year = 365 * 24 * time.Hour
	sandboxtest.Certificate(t, "first", year, f.TLSCert, f.TLSKey)
	n := startNode(t, url, "--tls-cert", f.TLSCert, "--tls-key", f.TLSKey)
	ask := func(config *tls.Config) (name string, status int, err error) {
		config.InsecureSkipVerify = true
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		r, _ := http.NewRequest("GET", strings.Replace(n.url, "http://", "https://", 1)+"/v1/items", nil)
		r.Header.Set("X-API-Key", key)
		answer, err := client.Do(r)
		if err != nil {
			return "", 0, err
		}
		answer.Body.Close()
		return answer.TLS.PeerCertificates[0].Subject.CommonName, answer.StatusCode, nil
	}
	if name, status, err := ask(&tls.Config{}); err != nil || name != "first" || status != 200 {
		t.Fatal(name, status, err)
	}
	if _, _, err := ask(&tls.Config{MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was spoken")
	}
	if a, err := n.try("GET", "/v1/items", key); err == nil && a.StatusCode == 200 {
		t.Error("plain HTTP was answered")
	}
	issuer := filepath.Join(dir, "issuer.pem")
	sandboxtest.Certificate(t, "issuer", time.Hour, issuer, f.TLSKey)
	sandboxtest.Certificate(t, "second", year, f.TLSCert, f.TLSKey)
	must(os.WriteFile(f.TLSCert, append(must1(os.ReadFile(f.TLSCert)), must1(os.ReadFile(issuer))...), 0o644))
	within(t, patience, "the new certificate", func() bool { name, _, err := ask(&tls.Config{}); return err == nil && name == "second" })
	ends := must1(x509.ParseCertificate(must1(tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)).Certificate[1])).NotAfter
	n.awaitCheck(t, "certificate", "it expires at "+ends.Format(time.RFC3339))
	if shown := n.metric(t, "listedge_tls_certificate_expiry_timestamp_seconds"); shown != float64(ends.Unix()) {
		t.Errorf("the metric says that the chain expires at %v, its issuer does at %s", shown, ends)
	}
	must(os.WriteFile(f.TLSKey, []byte("half written"), 0o600))
	n.awaitCheck(t, "certificate", "it cannot be read again: the old one stays in use")
	if name, status, err := ask(&tls.Config{}); err != nil || name != "second" || status != 200 {
		t.Fatalf("with a key that cannot be read: %s, %d, %v", name, status, err)
	}
	within(t, patience, "the metric and the log", func() bool {
		return n.metric(t, "listedge_check_up", `check="certificate"`) == 0 && strings.Contains(n.err.String(), "the certificate is not renewed")
	})
	sandboxtest.Certificate(t, "third", year, f.TLSCert, f.TLSKey)
	within(t, patience, "the one after", func() bool { name, _, err := ask(&tls.Config{}); return err == nil && name == "third" })
	n.awaitCheck(t, "certificate", "ok")

	// The files are on a mount that hangs, as a pipe does without a writer.
	must(os.Remove(f.TLSCert))
	must(syscall.Mkfifo(f.TLSCert, 0o600))
	n.awaitCheck(t, "certificate", "reading its files hangs")
	if name, status, err := ask(&tls.Config{}); err != nil || name != "third" || status != 200 || n.metric(t, "listedge_check_up", `check="postgres"`) != 1 {
		t.Errorf("while a read hangs: %s, %d, %v", name, status, err)
	}
	hung := must1(os.OpenFile(f.TLSCert, os.O_WRONLY, 0))
	must(os.Remove(f.TLSCert))
	sandboxtest.Certificate(t, "fourth", year, f.TLSCert, f.TLSKey)
	hung.Close()
	within(t, patience, "the one after the hang", func() bool { name, _, err := ask(&tls.Config{}); return err == nil && name == "fourth" })

	for _, args := range [][]string{{"--tls-cert", f.TLSCert}, {"--tls-cert", f.TLSCert, "--tls-key", filepath.Join(dir, "none")},
		{"--tls-cert", f.TLSKey, "--tls-key", f.TLSCert}} {
		refused(t, exitUsage, "--tls-", append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--database-url", url}, args...)...)
	}
}

// DNS rebinding: a web page whose host name leads to the admin listener cannot read it.
// Operators, monitors and load balancers can.
func TestTheAdminListenerAnswersOnlyToNamesThatNoStrangerHas(t *testing.T) {
	t.Parallel()
	machine := must1(os.Hostname())
	n := startNode(t, database(t), "--admin-listen", "localhost:0")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(n.admin, "http://"))
	must(err)
	ask := func(path, host string) (status int, body string) {
		t.Helper()
		r := must1(http.NewRequest("GET", n.admin+path, nil))
		r.Host = host
		answer := must1(http.DefaultTransport.RoundTrip(r))
		defer answer.Body.Close()
		text := must1(io.ReadAll(answer.Body))
		if answer.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s of %s may be sniffed", path, host)
		}
		return answer.StatusCode, string(text)
	}
	for _, host := range []string{
		"127.0.0.1:" + port, "127.0.0.1", "10.1.2.3:9090", "[::1]:9090", "[2001:db8::1]", "localhost:" + port, "LOCALHOST", "localhost.:9090", "app.localhost",
		machine, strings.ToUpper(machine) + ":9090", "node1:9090", "listedge", "listedge-admin.shop.svc:9090", "10-1-2-3.listedge-nodes.shop.svc.cluster.local:9090",
		"ip-10-0-0-1.eu-west-1.compute.internal",
	} {
		if status, body := ask("/settings", host); status != 200 {
			t.Errorf("%s: %d %s", host, status, body)
		}
	}
	for _, host := range []string{
		"attacker.example", "attacker.example:" + port, "localhost.attacker.example", "127.0.0.1.nip.io", "127.0.0.1.attacker.example:9090", "svc.attacker.example",
		"attacker.svc.example", "evil.local", machine + ".attacker.example",
	} {
		for _, path := range []string{"/", "/settings", "/metrics", "/log", "/explain?request-id=x", "/debug/pprof/", "/debug/pprof/cmdline", "/nowhere"} {
			if status, body := ask(path, host); status != 421 || !strings.Contains(body, "does not answer to the name") || strings.Contains(body, "listedge_") {
				t.Errorf("%s of %s: %d %s", path, host, status, body)
			}
		}
		// Health checks may send any host name. They get no details.
		status, body := ask("/readyz", host)
		var shown map[string]any
		if err := json.Unmarshal([]byte(body), &shown); err != nil || status != 200 || shown["ready"] != true || shown["checks"] != nil {
			t.Errorf("/readyz of %s: %d %s", host, status, body)
		}
		if status, _ := ask("/livez", host); status != 200 {
			t.Errorf("/livez of %s: %d", host, status)
		}
	}
	if status, body := ask("/settings", strings.Repeat("a.", 5000)+"example"); status != 421 || len(body) > 600 {
		t.Errorf("a long name: %d, %d bytes", status, len(body))
	}
}

// A load balancer that is not in --trusted-proxies, or that does not name its clients, is reported once
// in the log, in /readyz and by the doctor. The node stays ready.
func TestAProxyThatIsNotTrustedIsReported(t *testing.T) {
	t.Parallel()
	url := database(t)
	for _, c := range []struct {
		name, trusted, header string
		reported              string // empty = nothing
	}{
		{"none is named", "", "X-Forwarded-For: 198.51.100.7", "is not named in --trusted-proxies"},
		{"by the standard's header", "", "Forwarded: for=198.51.100.7", "is not named in --trusted-proxies"},
		{"it is named", "127.0.0.0/8", "X-Forwarded-For: 198.51.100.7", ""},
		{"it hides its clients", "127.0.0.0/8", "X-Forwarded-For: unknown", `names a client "unknown"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, url, "--trusted-proxies", c.trusted)
			n.awaitCheck(t, "trusted-proxies", "ok")
			for range 20 {
				n.get(t, "/v1/items", "", c.header, "Connection: close")
			}
			said := func() int { return strings.Count(n.err.String(), "all clients of a proxy count as one address") }
			if c.reported != "" {
				n.awaitCheck(t, "trusted-proxies", c.reported)
				n.awaitReady(t)
				within(t, patience, "it is logged", func() bool { return said() > 0 })
				says(t, []string{"--database-url", url, "--node", n.admin}, exitFine,
					doctor.Finding{Subject: "trusted-proxies", Level: doctor.Warn, Text: c.reported})
			}
			if got := said(); got > 1 || got > 0 != (c.reported != "") {
				t.Errorf("logged %d times: %s", got, n.err.String())
			}
		})
	}
}

// The program writes no password: neither in settings, errors and logs, nor in responses of
// the admin listener, nor in the output of commands. Package redact tries each form of a URL.
func TestNoPasswordIsShown(t *testing.T) {
	t.Parallel()
	const secret = "s3cr!t"
	for what, c := range map[string]struct {
		args string
		env  string
		code int
		want string
	}{
		"an argument":          {args: "migrate up postgres://u:s3cr!t@h/d", code: exitUsage, want: "postgres://u:xxxxx@h/d"},
		"pairs as an argument": {args: "migrate up password=s3cr!t", code: exitUsage, want: "unexpected argument"},
		"an escape":            {args: "doctor --database-url postgres://u:s3cr!t%zz@127.0.0.1:1/d", code: exitUsage, want: "--database-url"},
		"an @": {args: "keys list --workspace 00000000-0000-0000-0000-000000000001 --database-url postgres://u:s3@s3cr!t@127.0.0.1:1/d",
			code: exitUsage, want: "%40"},
		"a query's value": {args: "workspaces list --database-url postgres://h/d?PASSWORD=s3cr!t%zz", code: exitUsage, want: "--database-url"},
		"a mode":          {args: "workspaces list --database-url postgres://u:s3cr!t@h/d?sslmode=no", code: exitUsage, want: "sslmode is invalid"},
		"a key's file": {args: "workspaces list --database-url postgres://h/d?sslmode=require&sslcert=/none&sslkey=s3cr!t", code: exitUsage,
			want: "failed to configure TLS"},
		"several hosts": {args: "migrate status --database-url postgres://u:s3cr!t@a:1,b:x/d", code: exitUsage, want: "--database-url"},
		"a replica": {args: "serve --database-url postgres://h/d --replica-url postgres://a/d,postgres://u:s3cr!t@h:x/d", code: exitUsage,
			want: "--replica-url"},
		"redis":                {args: "serve --database-url postgres://h/d --redis-url redis://u:s3cr!t@h:x", code: exitUsage, want: "--redis-url"},
		"redis, a query":       {args: "serve --database-url postgres://h/d --redis-url redis://a:1,b:2?password=s3cr!t", code: exitUsage, want: "--redis-url"},
		"doctor's node":        {args: "doctor --database-url postgres://h/d --node http://u:s3cr!t@h:x", code: exitUsage, want: "--node"},
		"a node that is not":   {args: "explain x --node http://u:s3cr!t@127.0.0.1:1", code: exitFailed, want: "connection refused"},
		"a server that is not": {args: "migrate up --database-url postgres://u:s3cr!t@127.0.0.1:1/d", code: exitFailed, want: "connection refused"},
		"by environment":       {args: "workspaces list", env: "LISTEDGE_DATABASE_URL=postgres://u:s3@cr!t@s3cr!t/d", code: exitUsage, want: "--database-url"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := startWith(t, c.env, strings.Fields(c.args)...)
			<-p.ended
			if said := p.err.String(); p.code != c.code || strings.Count(said, "\n") != 1 || !strings.Contains(said, c.want) {
				t.Errorf("exit %d: %q, want %q", p.code, said, c.want)
			}
			if all := p.out.String() + p.err.String(); strings.Contains(all, secret) || strings.Contains(all, "cr!t") {
				t.Errorf("the password is shown: %s", all)
			}
		})
	}
}

// A node that reaches no server logs every failure, and no password.
func TestANodeShowsNoPassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cr!t"
	for what, c := range map[string]struct{ database, redis string }{
		"URLs":      {"postgres://u:s3cr!t@127.0.0.1:1,127.0.0.1:2/d?sslpassword=s3cr!t", "redis://u:s3cr!t@127.0.0.1:1/0"},
		"escaped":   {"postgresql://u:s3cr%21t@127.0.0.1:1/d?password=s3cr%21t", "redis://:s3cr%21t@127.0.0.1:1,127.0.0.1:2"},
		"an @":      {"postgres://127.0.0.1:1/d?user=u&password=s3cr!t&passfile=s3cr!t", "rediss://u:a%40s3cr!t@127.0.0.1:1"},
		"sentinels": {"postgres://u:s3cr!t@127.0.0.1:1/d", "redis+sentinel://u:s3cr!t@127.0.0.1:1,127.0.0.1:2/m"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := startWith(t, "OTEL_EXPORTER_OTLP_HEADERS=s3cr!t", "serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--drain=1ms", "--log-level=info",
				"--database-url", c.database, "--replica-url", "postgres://u:s3cr!t@127.0.0.1:1/d,postgres://u:s3cr%21t@127.0.0.1:2/d", "--redis-url", c.redis)
			within(t, patience, "complaints", func() bool {
				return strings.Contains(p.err.String(), "not ready") && strings.Contains(p.err.String(), "following changes was interrupted")
			})
			admin := "http://" + regexp.MustCompile(`admin=(\S+)`).FindStringSubmatch(p.err.String())[1]
			shown := ""
			for _, path := range []string{"/settings", "/readyz", "/log", "/metrics", "/", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
				r := must1(http.Get(admin + path))
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				must(err)
				shown += fmt.Sprintf("%s: %s\n", path, body)
			}
			doctor := start(t, "doctor", "--database-url", c.database, "--redis-url", c.redis, "--node", admin)
			<-doctor.ended
			if !strings.Contains(doctor.out.String(), "connection refused") {
				t.Errorf("%s%s", doctor.out.String(), doctor.err.String())
			}
			if code := p.stop(); code != exitFine {
				t.Errorf("exit %d: %s", code, p.err.String())
			}
			shown += p.out.String() + p.err.String() + doctor.out.String() + doctor.err.String()
			for line := range strings.Lines(shown) {
				for _, secret := range []string{secret, "s3cr%21t"} {
					if strings.Contains(line, secret) {
						t.Errorf("the password is shown: %s", line)
					}
				}
			}
		})
	}
}

// startWith starts the program with one environment variable more.
func startWith(t *testing.T, variable string, args ...string) *program {
	t.Helper()
	c := exec.Command(listedge, args...)
	c.Env = append(os.Environ(), variable)
	return startCommand(t, c)
}
