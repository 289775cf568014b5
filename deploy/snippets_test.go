package deploy_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"listedge/internal/sandbox/sandboxtest"
)

// signed is a token for the issuer's key.
func signed(key *rsa.PrivateKey, algorithm string, claims map[string]any) string {
	head := must1(json.Marshal(map[string]string{"alg": algorithm}))
	text := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(must1(json.Marshal(claims)))
	sum := sha256.Sum256([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(must1(rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])))
}

// The lines of the document stand in one HAProxy, a frontend for each block.
func TestTheLinesOfTheLoadBalancer(t *testing.T) {
	t.Parallel()
	side := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Side", name)
			fmt.Fprint(w, name, " ", r.Header.Get("X-API-Key"))
		}))
		t.Cleanup(s.Close)
		return fmt.Sprintf("backend %s\n    server it %s\n", name, s.Listener.Addr())
	}
	dir, issuer := t.TempDir(), must1(rsa.GenerateKey(rand.Reader, 2048))
	in := func(name string) string { return filepath.Join(dir, name) }
	certificate := func(name, file string) tls.Certificate {
		sandboxtest.Certificate(t, name, time.Hour, in(file), in(file+".key"))
		return must1(tls.LoadX509KeyPair(in(file), in(file+".key")))
	}
	client, stranger, _ := certificate("Sync", "clients.pem"), certificate("Sync", "stranger.pem"), certificate("site", "site.pem")
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must1(x509.MarshalPKIXPublicKey(issuer.Public()))})
	must(os.WriteFile(in("issuer.pem"), public, 0o600))
	must(os.WriteFile(in("keys.map"), []byte("Sync lk_sync\n"), 0o600))
	config := "global\n    log stdout format raw local0\ndefaults\n    mode http\n    timeout connect 9s\n    timeout client 1m\n    timeout server 1m\n" +
		side("nodes") + side("existing")
	addresses := map[string]string{} // heading -> address of the frontend with its lines
	for _, section := range strings.Split(string(must1(os.ReadFile("../docs/LOAD_BALANCER.md"))), "\n## ")[1:] {
		heading, _, _ := strings.Cut(section, "\n")
		lines := strings.ReplaceAll(regexp.MustCompile("(?s)```haproxy\n(.*?)```").FindStringSubmatch(section)[1], "/etc/haproxy", dir)
		addresses[heading] = "127.0.0.1:" + freePort()
		if !strings.Contains(lines, "bind :8443") {
			lines = "    bind :8443\n" + lines
		}
		if !strings.Contains(lines, "default_backend") {
			lines += "    default_backend nodes\n"
		}
		config += fmt.Sprintf("frontend f%d\n%s", len(addresses), strings.Replace(lines, ":8443", addresses[heading], 1))
	}
	startProgram(t, exec.Command(tool("haproxy"), "-db", "-f", write(t, "haproxy.cfg", config)))

	claims := func() map[string]any {
		return map[string]any{"sub": "Sync", "aud": "listedge", "exp": time.Now().Add(time.Hour).Unix()}
	}
	token := func(change string, to any) string {
		claims := claims()
		claims[change] = to
		return "Authorization: Bearer " + signed(issuer, "RS256", claims)
	}
	const beside, bearer, mutual, jwt, cors = "Beside an existing API", "Bearer tokens", "Client certificates", "JWT", "CORS"
	ask := func(at, method, path, header string, certificates ...tls.Certificate) (status int, text string, err error) {
		scheme := "http://"
		if at == mutual {
			scheme = "https://"
		}
		r := must1(http.NewRequest(method, scheme+addresses[at]+path, nil))
		if at == mutual || at == jwt {
			r.Header.Set("X-API-Key", "forged")
		}
		if name, value, ok := strings.Cut(header, ": "); ok {
			r.Header.Set(name, value)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certificates}, DisableKeepAlives: true}
		answer, err := (&http.Client{Transport: transport, Timeout: patience}).Do(r)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.StatusCode, fmt.Sprint(string(body), " ", answer.Header), err
	}
	within(t, patience, "HAProxy listens", func() bool { _, _, err := ask(cors, "GET", "/", ""); return err == nil })
	const items = "/v1/items"
	for name, c := range map[string]struct {
		at, method, header string
		status             int
		want               string // of the response's body and head
	}{
		"a list, without a key":        {beside, "GET", "", 200, "existing"},
		"a bearer token":               {bearer, "GET", "Authorization: Bearer 17|their key", 200, "nodes 17|their key "},
		"a bearer in lower case":       {bearer, "GET", "Authorization: bearer their-key", 200, "nodes their-key "},
		"a key beside bearer tokens":   {bearer, "GET", "X-API-Key: lk_sync", 200, "nodes lk_sync "},
		"a password":                   {bearer, "GET", "Authorization: Basic bm9ib2R5Og==", 200, "nodes  "},
		"a known certificate":          {mutual, "GET", "", 200, "nodes lk_sync "},
		"a token":                      {jwt, "GET", token("sub", "Sync"), 200, "nodes lk_sync "},
		"a token of nobody":            {jwt, "GET", token("sub", "Else"), 200, "nodes  "},
		"a token that expired":         {jwt, "GET", token("exp", time.Now().Add(-time.Hour).Unix()), 401, ""},
		"a token without an expiry":    {jwt, "GET", token("exp", nil), 401, ""},
		"a token for another audience": {jwt, "GET", token("aud", "billing"), 401, ""},
		"a token of another issuer":    {jwt, "GET", "Authorization: Bearer " + signed(must1(rsa.GenerateKey(rand.Reader, 2048)), "RS256", claims()), 401, ""},
		"a token of another algorithm": {jwt, "GET", "Authorization: Bearer " + signed(issuer, "none", claims()), 401, ""},
		"a key in place of a token":    {jwt, "GET", "X-API-Key: lk_sync", 401, ""},
		"a preflight":                  {cors, "OPTIONS", "Origin: https://app.example", 204, "Access-Control-Allow-Methods:[GET, HEAD]"},
		"a browser's request":          {cors, "GET", "Origin: https://app.example", 200, "Access-Control-Allow-Origin:[https://app.example]"},
		"what a browser may read":      {cors, "GET", "Origin: https://app.example", 200, "Access-Control-Expose-Headers:[ETag"},
		"a page of somebody else":      {cors, "GET", "Origin: https://evil.example", 200, "Vary:[Origin]"},
	} {
		t.Run(name, func(t *testing.T) {
			status, text, err := ask(c.at, c.method, items, c.header, client)
			if err != nil || status != c.status || !strings.Contains(text, c.want) || strings.Contains(name, "else") && strings.Contains(text, "Allow") {
				t.Errorf("%d %s %v", status, text, err)
			}
		})
	}
	t.Run("no certificate, or one that nobody signed", func(t *testing.T) {
		for _, with := range [][]tls.Certificate{nil, {stranger}} {
			if status, text, err := ask(mutual, "GET", items, "", with...); err == nil {
				t.Errorf("%d %s", status, text)
			}
		}
	})
	t.Run("a share of the keys, each on one side", func(t *testing.T) {
		moved := 0
		for i := range 500 {
			key := fmt.Sprint("X-API-Key: key", i)
			_, first, err := ask(beside, "GET", items+"?limit=5", key)
			if !strings.HasPrefix(first, "nodes ") {
				continue
			}
			moved++
			for method, path := range map[string]string{"HEAD": "/v1/contacts", "POST": items, "GET": items + "/7"} {
				_, text, err := ask(beside, method, path, key)
				if toNodes := strings.Contains(text, "Side:[nodes]"); err != nil || toNodes != (method == "HEAD") {
					t.Errorf("%s %s: %s, %v", method, path, text, err)
				}
			}
			must(err)
		}
		if moved == 0 || moved > 20 {
			t.Errorf("%d of 500 keys are in a share of 1 %%", moved)
		}
	})
}

// nginx takes the key from where the document says, and no two of them.
func TestTheBearerLinesOfNginx(t *testing.T) {
	t.Parallel()
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header["X-Api-Key"]) }))
	t.Cleanup(node.Close)
	text := string(must1(os.ReadFile("../docs/LOAD_BALANCER.md")))
	text = text[strings.Index(text, "\n## Bearer tokens\n"):]
	lines := regexp.MustCompile("(?s)```nginx\n(map .*?)\n(proxy_set_header .*?)\n```").FindStringSubmatch(text)
	address, dir := "127.0.0.1:"+freePort(), t.TempDir()
	config := fmt.Sprintf(`pid %s/pid; error_log stderr; events {}
http {
	access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	%s
	server { listen %s; location / { %s
		proxy_pass %s; } }
}`, dir, lines[1], address, lines[2], node.URL)
	startProgram(t, exec.Command(tool("nginx"), "-p", dir, "-c", write(t, "nginx.conf", config), "-g", "daemon off; master_process off;"))
	ask := func(headers map[string]string) string {
		r := must1(http.NewRequest("GET", "http://"+address+"/v1/items", nil))
		for name, value := range headers {
			r.Header.Set(name, value)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		return string(must1(io.ReadAll(answer.Body)))
	}
	within(t, patience, "nginx listens", func() bool { return ask(nil) == "[]" })
	for want, headers := range map[string]map[string]string{
		"[17|their key]": {"Authorization": "Bearer 17|their key"},
		"[their-key]":    {"Authorization": "bearer  their-key"},
		"[lk_sync]":      {"X-API-Key": "lk_sync"},
		"[their]":        {"Authorization": "Bearer their", "X-API-Key": "lk_sync"},
		"[]":             {"Authorization": "Basic bm9ib2R5Og=="},
		"[lk_nobody]":    {"Authorization": "Bearer ", "X-API-Key": "lk_nobody"},
	} {
		if got := ask(headers); got != want {
			t.Errorf("%s for %v", got, slices.Sorted(maps.Keys(headers)))
		}
	}
}
