//go:build !race

package edge

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"listedge/cache"
	"listedge/origin/apikey"
)

// A hit allocates nothing until its last byte is written, with key, two limits, a quota,
// parameters, metrics and all headers. (The race detector allocates, hence the build tag.)
func TestAHitAllocatesNothing(t *testing.T) {
	body := `{"data":[` + strings.Repeat(" ", 20_000) + `]`
	s, ctx := hitServer(t, body)
	giveQuota(t, s, apikey.Quota{Requests: apikey.MaxQuota, Period: apikey.Month})
	for _, c := range []struct {
		name, header, value string
		status              int
	}{
		{"identity", "Accept", "*/*", 200},
		{"gzip", "Accept-Encoding", "gzip, br", 200},
		{"not modified", "If-None-Match", cache.TagOf([]byte(body)).String(), 304},
	} {
		ctx.Request.Header.Set(c.header, c.value)
		if got := answerTo(t, s, ctx); got.status != c.status {
			t.Fatalf("%s: %+v", c.name, got)
		}
		w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
		run := func() {
			sent.written = sent.written[:0]
			serveInto(t, s, ctx, w)
		}
		if n := testing.AllocsPerRun(1000, run); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

// A hit over TCP allocates nothing, from the first byte of the request to the last of the
// response.
func TestAHitOverTCPAllocatesNothing(t *testing.T) {
	s, _ := hitServer(t, `{"data":[`+strings.Repeat(" ", 20_000)+`]`)
	c, _ := listening(t, s)
	request, end, answer := []byte(thePage+"X-Request-Id: mine\r\n\r\n"), []byte(`"requestId":"mine"}`), make([]byte, 64<<10)
	if n := testing.AllocsPerRun(1000, func() {
		_, err := c.Write(request)
		for n, got := 0, 0; err == nil && !bytes.HasSuffix(answer[:n], end); n += got {
			got, err = c.Read(answer[n:])
		}
		must(0, err)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
