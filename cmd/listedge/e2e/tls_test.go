package e2e

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	sandboxtest.Certificate(t, "second", time.Hour, f.TLSCert, f.TLSKey)
	within(t, patience, "the new certificate", func() bool { name, _, err := ask(&tls.Config{}); return err == nil && name == "second" })
	chain := must1(tls.LoadX509KeyPair(f.TLSCert, f.TLSKey))
	if shown := n.metric(t, "listedge_tls_certificate_expiry_timestamp_seconds"); shown != float64(chain.Leaf.NotAfter.Unix()) {
		t.Errorf("the metric says that the certificate expires at %v, it does at %s", shown, chain.Leaf.NotAfter)
	}
	n.awaitCheck(t, "certificate", "it expires at "+chain.Leaf.NotAfter.Format(time.RFC3339))
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

	for _, args := range [][]string{{"--tls-cert", f.TLSCert}, {"--tls-cert", f.TLSCert, "--tls-key", filepath.Join(dir, "none")}, {"--tls-cert", f.TLSKey, "--tls-key", f.TLSCert}} {
		refused(t, exitUsage, "--tls-", append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--database-url", url}, args...)...)
	}
}
