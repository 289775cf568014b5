package admin

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// As many scrapers hang as there may be connections: a probe is answered all the same.
func TestHungScrapersKeepNoProbeOut(t *testing.T) {
	asked, release := make(chan struct{}, maxConnections), make(chan struct{})
	hangs := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-release })
	defer close(release)
	s := NewServer(Options{Metrics: hangs}, log.New(io.Discard, "", 0))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	for range maxConnections {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
		<-asked
	}
	for range 3 {
		r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + l.Addr().String() + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		if r.Body.Close(); r.StatusCode != http.StatusOK {
			t.Error(r.Status)
		}
	}
}

// The page's policy does not run injected scripts, and lets nothing send data elsewhere.
func TestTheStatusPagesPolicy(t *testing.T) {
	w := httptest.NewRecorder()
	servePage(statusPage)(w, nil)
	policy := w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; connect-src 'self';") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
		t.Error(policy)
	}
	for _, kind := range []string{"script", "style"} {
		if n := bytes.Count(statusPage, []byte("<"+kind)); n != 1 || strings.Count(policy, kind+"-src 'sha256-") != 1 {
			t.Errorf("%d elements of %s, policy %s", n, kind, policy)
		}
	}
}
