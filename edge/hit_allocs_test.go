//go:build !race

package edge

import (
	"bufio"
	"bytes"
	"math"
	"strings"
	"testing"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/origin/apikey"
)

// A hit allocates nothing until its last byte is written, with key, two limits, a quota,
// parameters, metrics and all headers, whatever page it asks for, unless it is logged. (The race
// detector allocates, hence the build tag.)
func TestAHitAllocatesNothing(t *testing.T) {
	row := strings.Repeat(" ", 20_000)
	s, ctx := hitServer(t, row)
	giveQuota(t, s, apikey.Quota{Requests: apikey.MaxQuota, Period: apikey.Month})
	entry, _ := keyOf(t, s)
	check := func(name, target, header, value string, status int) {
		t.Run(name, func(t *testing.T) {
			ctx.Request.SetRequestURI(target)
			ctx.Request.Header.Set(header, value)
			defer ctx.Request.Header.Del(header)
			if got := answerTo(t, s, ctx); got.Status != status || !strings.Contains(got.Header("Cache-Status"), "; hit; ") {
				t.Fatalf("%+v", got)
			}
			w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
			if n := testing.AllocsPerRun(1000, func() {
				sent.written = sent.written[:0]
				serveInto(t, s, ctx, w)
			}); n > 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
	check("identity", theTarget, "Accept", "*/*", 200)
	check("gzip", theTarget, "Accept-Encoding", "gzip, br", 200)
	check("not modified", theTarget, "If-None-Match", cache.TagOf([]byte(bodyOf(row))).String(), 304)
	longest := strings.Repeat("\U0010FFFF", list.FoldKeyLength)
	for name, parameters := range map[string]string{
		"all rows":           "",
		"every parameter":    "&limit=100&type=customer&search=tea",
		"escaped names":      "&%6Cimit=1%30&t%79pe=supplier",
		"a search":           "&search=chai",
		"an escaped search":  "&search=%C3%A9t%C3%A9+%E8%8C%B6%26",
		"a search, trimmed":  "&search=+%20green%20tea++",
		"the longest search": "&search=" + strings.Repeat("%F4%8F%BF%BF", maxSearch),
	} {
		for _, order := range ordersOf(listtest.Contacts) {
			q, wrong := parseText(listtest.Contacts, "sort="+order+parameters)
			if wrong != nil {
				t.Fatal(wrong)
			}
			q.Tenant = entry.Key.Tenant
			target := "/v1/contacts?sort=" + order + parameters
			fillWith(t, s.Cache, q, row)
			check(name+" by "+order, target, "Accept", "*/*", 200)
			q.After = positionOf(&q, longest)
			fillWith(t, s.Cache, q, row)
			check(name+" by "+order+" behind a row", target+"&cursor="+string(q.AppendCursor(nil)), "Accept", "*/*", 200)
		}
	}
}

// The records of a sample of hits cost a hit a tenth of an allocation.
func TestTheRecordOfAHitAllocatesLittle(t *testing.T) {
	s, ctx := hitServer(t, "")
	ctx.Request.Header.SetUserAgent("curl/8.5.0")
	w, sent := bufio.NewWriterSize(ctx.Conn(), writeBuffer), ctx.Conn().(*conn).Conn.(*wire)
	least := math.Inf(1) // what else the process does on a slow machine counts, too
	for range 5 {
		least = min(least, testing.AllocsPerRun(100, func() {
			for range hitsPerSample {
				sent.written = sent.written[:0]
				serveInto(t, s, ctx, w)
			}
		}))
	}
	if least > 6 {
		t.Errorf("%v allocations in %d hits", least, hitsPerSample)
	}
}

// A hit over TCP allocates nothing, from the first byte of the request to the last of the
// response.
func TestAHitOverTCPAllocatesNothing(t *testing.T) {
	s, _ := hitServer(t, strings.Repeat(" ", 20_000))
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
