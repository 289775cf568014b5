package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"listedge/internal/list"
	"listedge/origin/admin"
)

const httpNodes = 3

// judged is a client of a fleet. An exact bucket judges its requests by the moments at which they
// came: a client that is late, and then in time, exceeds its limit.
type judged struct {
	what  string
	limit limit
	run   func(j *judged) error

	nodes []*client
	from  time.Time // what was sent before does not count

	mu       sync.Mutex // guards requests
	requests []judgedRequest
}

type judgedRequest struct {
	at      time.Time // between sent and answered
	refused bool
}

// ask sends a request to any node. retry is its Retry-After in seconds; 0 = it was admitted.
func (j *judged) ask() (retry int, err error) {
	c := j.nodes[rand.IntN(len(j.nodes))]
	request, answer := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(answer)
	request.SetRequestURI("http://" + c.http.Addr + itemsPath(1))
	request.Header.Set("X-API-Key", c.key)
	sent := time.Now()
	if err := c.http.Do(request, answer); err != nil {
		return 0, err
	}
	at := sent.Add(time.Since(sent) / 2)
	switch answer.StatusCode() {
	case fasthttp.StatusOK:
	case fasthttp.StatusTooManyRequests:
		if retry, err = strconv.Atoi(string(answer.Header.Peek("Retry-After"))); err != nil {
			return 0, err
		}
	default:
		return 0, fmt.Errorf("%d %s", answer.StatusCode(), answer.Body())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.requests = append(j.requests, judgedRequest{at, retry > 0})
	return retry, nil
}

// judge counts the requests, those refused, and those that an exact bucket refuses.
func (j *judged) judge() (all, refused, byExact int) {
	exact := rate.NewLimiter(rate.Limit(j.limit.rate), int(j.limit.burst))
	slices.SortFunc(j.requests, func(a, b judgedRequest) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	for _, r := range j.requests {
		admits := exact.AllowN(r.at, 1)
		if r.at.Before(j.from) {
			continue
		}
		if !admits {
			byExact++
		}
		if all++; r.refused {
			refused++
		}
	}
	return all, refused, byExact
}

// measureLimitsOverHTTP has clients that keep to their limit ask real nodes, all at the same time.
func measureLimitsOverHTTP(ctx context.Context, s *subject, r *report) error {
	f, err := startFleet(ctx, s, httpNodes)
	if err != nil {
		return err
	}
	defer f.end()
	bursts := func(j *judged) error { return j.bursts(1.02, 40) }
	all := []*judged{{what: "40 whole bursts, one in 1.02 refills", limit: limit{10, 20}, run: bursts},
		{what: "40 whole bursts, one in 1.02 refills", limit: limit{50, 100}, run: bursts},
		{what: "after a minute of flood: obeys Retry-After, then 95 % of the rate", limit: limit{1, 100}, run: (*judged).afterAFlood}}
	var clients errgroup.Group
	for _, j := range all {
		w, err := s.admin.CreateWorkspace(ctx, "limits", nil, nil, nil, "")
		if err != nil {
			return err
		}
		burst := int32(j.limit.burst)
		key, err := s.admin.CreateKey(ctx, admin.Key{WorkspaceID: w.ID, Scopes: list.BuiltIn().Scopes(), RatePerSecond: &j.limit.rate, Burst: &burst}, nil)
		if err != nil {
			return err
		}
		for _, n := range f.nodes {
			j.nodes = append(j.nodes, n.client(key.Key))
		}
		clients.Go(func() error { return j.run(j) })
	}
	err = clients.Wait()
	t := r.table(fmt.Sprintf("Over HTTP, on %d nodes and a Redis", httpNodes), "what", "limit", "requests", "refused", "refused by an exact bucket")
	for _, j := range all {
		asked, refused, byExact := j.judge()
		t.add(j.what, j.limit.String(), fmt.Sprint(asked), fmt.Sprint(refused), fmt.Sprint(byExact))
	}
	return err
}

// bursts sends whole bursts, one in x refills, the requests 2 ms apart.
func (j *judged) bursts(x float64, bursts int) error {
	j.from = time.Now()
	every := time.Duration(x * float64(j.limit.burst) / j.limit.rate * 1e9)
	var requests errgroup.Group
	for i := range bursts {
		for k := range j.limit.burst {
			time.Sleep(time.Until(j.from.Add(time.Duration(i)*every + time.Duration(k)*2*time.Millisecond)))
			requests.Go(func() error {
				_, err := j.ask()
				return err
			})
		}
	}
	return requests.Wait()
}

// afterAFlood sends twenty times the rate for a minute. For 90 s then it obeys Retry-After, and
// keeps to 95 % of the rate.
func (j *judged) afterAFlood() error {
	for ends := time.Now().Add(time.Minute); time.Now().Before(ends); time.Sleep(time.Duration(1e9 / 20 / j.limit.rate)) {
		if _, err := j.ask(); err != nil {
			return err
		}
	}
	for j.from = time.Now(); time.Since(j.from) < 90*time.Second; {
		retry, err := j.ask()
		if err != nil {
			return err
		}
		time.Sleep(max(time.Duration(retry)*time.Second, time.Duration(1e9/j.limit.rate/.95)))
	}
	return nil
}
