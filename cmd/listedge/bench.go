package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

type benchCommand struct {
	URL         string        `help:"What to request." default:"http://127.0.0.1:8080/v1/items" placeholder:"URL"`
	Key         string        `help:"API key." required:"" placeholder:"KEY"`
	Duration    time.Duration `help:"How long." default:"5s"`
	Connections int           `help:"How many at once; each waits for a response before it sends the next request." default:"16"`
}

// Validate refuses what cannot work.
func (c *benchCommand) Validate() error {
	u, err := url.Parse(c.URL)
	switch {
	case c.Key == "":
		return errors.New("--key must not be empty")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("--url must be an http:// or https:// URL")
	case c.Duration < 100*time.Millisecond || c.Duration > time.Hour:
		return fmt.Errorf("--duration must be from 100ms to 1h")
	case c.Connections < 1 || c.Connections > 10_000:
		return fmt.Errorf("--connections must be from 1 to 10000")
	}
	return nil
}

// errNoAnswer: no request was answered, so there are no latencies to report.
var errNoAnswer = errors.New("no answer came")

// requestTimeout is the timeout of a request, and the largest value of the histogram.
const requestTimeout = time.Minute

// answers are the results of all requests.
type answers struct {
	mu        sync.Mutex              // guards all below
	latencies *hdrhistogram.Histogram // microseconds
	statuses  map[string]int          // with Cache-Status
	bytes     int64
	failures  int
	failure   error // one of them
}

// Run requests the URL repeatedly for the duration, and prints the latencies.
func (c *benchCommand) Run(ctx context.Context, t *terminal) error {
	running, stop := context.WithTimeout(ctx, c.Duration)
	defer stop()
	request, err := http.NewRequestWithContext(running, http.MethodGet, c.URL, nil)
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	request.Header.Set("X-API-Key", c.Key)
	client := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: c.Connections, MaxConnsPerHost: c.Connections}}
	defer client.CloseIdleConnections()
	all := &answers{latencies: hdrhistogram.New(1, requestTimeout.Microseconds(), 3), statuses: map[string]int{}}
	began := time.Now()
	var clients sync.WaitGroup
	for range c.Connections {
		clients.Go(func() { all.run(client, request) })
	}
	clients.Wait()
	took := time.Since(began)
	if all.latencies.TotalCount() == 0 {
		return errors.Join(errNoAnswer, all.failure)
	}
	all.draw(t.out, took)
	if all.failures > 0 {
		return fmt.Errorf("%d requests had no answer: %w", all.failures, all.failure)
	}
	return all.refused()
}

// refused returns an error if most responses are refusals, because the latencies are
// then not those of pages.
func (l *answers) refused() error {
	var refused, most int
	var status, do string
	for _, s := range slices.Sorted(maps.Keys(l.statuses)) {
		if s[0] == '2' || s[:3] == "304" {
			continue
		}
		refused += l.statuses[s]
		if l.statuses[s] > most {
			status, most = s, l.statuses[s]
		}
		switch s[:3] {
		case "401", "403":
			do = ": give a key that may read this"
		case "429": // wrong keys are limited, too
			do = cmp.Or(do, ": give a key with a higher limit (listedge keys update ID --rate R)")
		}
	}
	total := int(l.latencies.TotalCount())
	if 2*refused <= total {
		return nil
	}
	return fmt.Errorf("this measured refusals: %d of %d answers, most of them %s%s", refused, total, status, do)
}

// run sends one request after the other, until the context of the request ends.
func (l *answers) run(client *http.Client, request *http.Request) {
	for ctx := request.Context(); ctx.Err() == nil; {
		began := time.Now()
		answer, err := client.Do(request.Clone(ctx))
		var n int64
		if err == nil {
			n, err = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		took := time.Since(began)
		if ctx.Err() != nil && err != nil { // the end of the run has cancelled the request
			return
		}
		l.mu.Lock()
		if err != nil {
			l.failures, l.failure = l.failures+1, err
		} else {
			l.add(answer, n, took)
		}
		l.mu.Unlock()
		if err != nil {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// add adds an answer. The caller holds mu.
func (l *answers) add(answer *http.Response, bytes int64, took time.Duration) {
	_ = l.latencies.RecordValue(max(1, took.Microseconds()))
	l.bytes += bytes
	status := answer.Status
	if from, ok := strings.CutPrefix(answer.Header.Get("Cache-Status"), "listedge; "); ok {
		status += "  " + from
	}
	l.statuses[status]++
}

// draw writes the numbers and a histogram; each bar covers twice the time of the one before.
func (l *answers) draw(w io.Writer, took time.Duration) {
	total := l.latencies.TotalCount()
	fmt.Fprintf(w, "%d answers in %s: %.0f a second, %.1f MB a second\n", total, took.Round(time.Millisecond),
		float64(total)/took.Seconds(), float64(l.bytes)/1e6/took.Seconds())
	for _, status := range slices.Sorted(maps.Keys(l.statuses)) {
		fmt.Fprintf(w, "  %6.2f %%  %s\n", 100*float64(l.statuses[status])/float64(total), status)
	}
	fmt.Fprint(w, "latency")
	for _, p := range []float64{50, 90, 99, 99.9, 100} {
		fmt.Fprintf(w, "  p%v %s", p, micros(l.latencies.ValueAtPercentile(p)))
	}
	fmt.Fprintln(w)
	const width, first = 50, 64 // microseconds
	var counts [64]int64        // by bar
	for _, bar := range l.latencies.Distribution() {
		counts[bits.Len64(uint64(bar.From-1)/first)] += bar.Count
	}
	most := slices.Max(counts[:])
	for i := 0; i == 0 || first<<i/2 < l.latencies.Max(); i++ {
		if n := counts[i]; n > 0 || i > 0 {
			fmt.Fprintf(w, "  up to %9s  %-*s %d\n", micros(first<<i), width, strings.Repeat("█", int((n*width+most-1)/most)), n)
		}
	}
}

func micros(n int64) string { return (time.Duration(n) * time.Microsecond).String() }
