package admin

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
)

// As many scrapers hang as there may be connections: a probe is answered all the same.
func TestHungScrapersKeepNoProbeOut(t *testing.T) {
	asked, release := make(chan struct{}, maxConnections), make(chan struct{})
	hangs := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-release })
	defer close(release)
	s := NewServer(Options{Metrics: hangs, Log: http.NotFoundHandler()}, log.New(io.Discard, "", 0))
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
