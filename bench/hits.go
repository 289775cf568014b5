package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valyala/fasthttp"
)

// bareKey is what the bare handler GETs.
const bareKey = "bench"

// serveBare is the bare handler: the same HTTP server with the same settings. It writes as many
// bytes as the request says, or a 304. If the request says so, it GETs the bytes from Redis.
func serveBare(address, redisAddress string) {
	body := make([]byte, 1<<20)
	client := redis.NewClient(&redis.Options{Addr: redisAddress, DisableIdentity: true})
	s := &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			n, _ := ctx.QueryArgs().GetUint("bytes")
			if n < 0 {
				ctx.SetStatusCode(fasthttp.StatusNotModified)
				return
			}
			ctx.SetContentType("application/json")
			if size, err := ctx.QueryArgs().GetUint("get"); err == nil {
				value := make([]byte, size)
				if _, err := client.GetToBuffer(context.Background(), bareKey, value).Result(); err != nil {
					ctx.Error(err.Error(), fasthttp.StatusBadGateway)
					return
				}
				ctx.Response.SetBodyRaw(value[:n])
				return
			}
			ctx.SetBody(body[:n])
		},
		ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 75 * time.Second,
		ReadBufferSize: 16 << 10, WriteBufferSize: 64 << 10, MaxRequestBodySize: 1,
		NoDefaultServerHeader: true, NoDefaultDate: true, LazyRequestTime: true,
	}
	if err := s.ListenAndServe(address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// hitCase is a kind of hit, and how much more than the bare handler it may cost: one that writes as many bytes, and one
// that writes the body alone.
type hitCase struct {
	what           string
	limit          int
	encoding       string
	notModified    bool
	goal, goalBody float64
}

var hitCases = []hitCase{
	{"50 items", 50, "identity", false, 1.05, 1.05},
	{"10 items", 10, "identity", false, 1.05, 1.12},
	{"50 items, gzip", 50, "gzip", false, 1.10, 1.12},
	{"50 items, 304", 50, "identity", true, 1.10, 1.12},
}

// sides returns the node, with a request for the case's page, and the bare handler, which gets
// the same request headers: as b it writes as many bytes, as body only a body of that length. A bare 304 has only its head.
func (c hitCase) sides(key string, ours, bare *server) (a, b, body *side, size int, err error) {
	headers := []string{"X-API-Key: " + key, "Accept-Encoding: " + c.encoding}
	a = &side{name: "listedge", server: ours, path: itemsPath(c.limit), headers: headers}
	got, err := a.awaitHit(http.StatusOK, ourHit)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	if c.notModified {
		a.headers = append(headers, "If-None-Match: "+got.header.Get("ETag"))
		if got, err = a.awaitHit(http.StatusNotModified, ourHit); err != nil {
			return nil, nil, nil, 0, err
		}
		b = &side{name: "bare handler", server: bare, path: "/", headers: a.headers}
		return a, b, b, got.size, nil
	}
	b, err = bareSide(bare, headers, got.size)
	body = &side{name: "bare handler, body alone", server: bare, path: fmt.Sprint("/?bytes=", len(got.body)), headers: headers}
	return a, b, body, got.size, err
}

// bareSide is the bare handler, whose answers have that size on the wire.
func bareSide(bare *server, headers []string, size int) (*side, error) {
	b := &side{name: "bare handler", server: bare, path: "/?bytes=10000", headers: headers}
	plain, err := b.ask()
	// Its body is as much longer as its head is shorter.
	b.path = "/?bytes=" + strconv.Itoa(size-plain.size+10_000)
	return b, err
}

// againstBare runs measure with a node that follows its database, and the bare handler.
func (s *subject) againstBare(ctx context.Context, measure func(ours, bare *server) error) error {
	ours, err := s.startFollower(ctx)
	if err != nil {
		return err
	}
	defer ours.end()
	bare, err := startBare("")
	if err != nil {
		return err
	}
	defer bare.end()
	return measure(ours, bare)
}

// measureHits compares memory hits with the bare handler.
func measureHits(ctx context.Context, s *subject, r *report) error {
	return s.againstBare(ctx, func(ours, bare *server) error {
		for _, c := range hitCases {
			a, b, body, size, err := c.sides(s.key, ours, bare)
			if err != nil {
				return err
			}
			sides := []*side{a, b}
			if body != b {
				sides = append(sides, body)
			}
			if err := takeTurns(ctx, rounds, connections, sides...); err != nil {
				return err
			}
			what := fmt.Sprintf("memory hit, %s (%d bytes): CPU per request, µs, against a bare handler that sends ", c.what, size)
			if body == b {
				r.ratio(what+"its status line alone", "%.2f", a.cost.perRequest(), b.cost.perRequest(), c.goal)
			} else {
				r.ratio(what+"as many", "%.2f", a.cost.perRequest(), b.cost.perRequest(), c.goal)
				r.ratio("… against one that sends status, type, length and body and nothing else", "%.2f", a.cost.perRequest(), body.cost.perRequest(), c.goalBody)
			}
			r.figure("… requests/s", fmt.Sprintf("%.0f", a.cost.perSecond()), fmt.Sprintf("%.0f", b.cost.perSecond()))
			allocations, err := a.allocations(ctx)
			if err != nil {
				return err
			}
			r.figure("… allocations per request, beside those of an idle node", fmt.Sprintf("%.3f", allocations), "")
		}
		return nil
	})
}

// allocations is how many a hit makes: those of a round, without those of a node that is idle for as long. It follows its
// database in both.
func (s *side) allocations(ctx context.Context) (perRequest float64, err error) {
	counted := func(do func()) float64 {
		before := s.server.mallocs()
		do()
		return s.server.mallocs() - before
	}
	var round cost
	idle := counted(func() { time.Sleep(roundTime * time.Second) })
	busy := counted(func() { err = s.drive(ctx, connections, &round) })
	return max(0, busy-idle) / float64(max(1, round.requests)), err
}

// mallocs is how many allocations the node has made. It collects garbage first: only then all of them are counted.
func (s *server) mallocs() float64 {
	if r, err := http.Get("http://" + s.admin + "/debug/pprof/heap?gc=1"); err == nil {
		r.Body.Close()
	}
	return s.metric("go_memstats_mallocs_total")
}

// measureLatency compares the slowest hundredth of hits under many connections.
func measureLatency(ctx context.Context, s *subject, r *report) error {
	return s.againstBare(ctx, func(ours, bare *server) error {
		a, b, _, _, err := hitCases[0].sides(s.key, ours, bare)
		if err != nil {
			return err
		}
		if err := takeTurns(ctx, rounds, 256, a, b); err != nil {
			return err
		}
		r.ratio("256 connections, 50 items: p99, ms (median of rounds), against a bare handler", "%.1f", percentile(a.cost.p99, 0.5), percentile(b.cost.p99, 0.5), 2)
		return nil
	})
}

// metric reads a series from the node's metrics.
func (s *server) metric(name string) float64 {
	r, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, _ := strconv.ParseFloat(value, 64)
			return n
		}
	}
	return 0
}
