package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// The oracle of freshness. One writer per workspace counts up in two rows of
// one transaction; readers on every node note what they are shown and when.
// An answer that does not say it is stale must not omit a commit that was
// acknowledged more than the bound before the request began.

const freshnessBound = 500 * time.Millisecond

// oracle runs writers and readers and collects what is wrong.
type oracle struct {
	fleet     *fleet
	histories []*history

	forms  []form       // the ways to write
	others atomic.Int64 // answers to lists that hardly anybody asks for

	mu      sync.Mutex // guards all below
	worst   time.Duration
	answers map[string]int // by Cache-Status, to the list that all ask for
	wrong   []string
}

const (
	watchedWorkspaces = 4
	usualLimit        = 50
	leastAnswers      = 100 // or nothing was shown
)

// writerPauses are the longest pauses of the workspaces' writers. Sparse ones
// tell: where much is written, the next change hides that one was missed.
var writerPauses = [watchedWorkspaces]time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second}

func newOracle(t *testing.T, f *fleet) *oracle {
	t.Helper()
	o := &oracle{fleet: f, forms: usualForms, answers: map[string]int{}}
	for range watchedWorkspaces {
		workspace, key := workspaceWithKey(t, f.url)
		execute(t, f.url, "INSERT INTO items (workspace_id, name, stock_on_hand) VALUES ($1, 'a', 0), ($1, 'b', 0)", workspace)
		now := time.Now()
		o.histories = append(o.histories, &history{workspace: uuid.MustParse(workspace), parking: uuid.New(), key: key, began: []time.Time{now}, committed: []time.Time{now}})
	}
	return o
}

// read asks one node over and over.
func (o *oracle) read(ctx context.Context, n *nodeProcess, h *history) {
	client := &http.Client{Timeout: 10 * time.Second}
	for i := 0; ctx.Err() == nil; i++ {
		limit := usualLimit
		if i%4 == 3 { // a list that was hardly asked for before: a standby may have caught up
			limit = 2 + rand.IntN(40)
		}
		r, _ := http.NewRequest("GET", n.url+"/v1/items?limit="+strconv.Itoa(limit), nil)
		r.Header.Set("X-API-Key", h.key)
		began := time.Now()
		response, err := client.Do(r)
		if err != nil {
			o.count("no answer")
			time.Sleep(10 * time.Millisecond)
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		ended := time.Now()
		if err != nil || response.StatusCode != 200 {
			o.count(response.Status)
			time.Sleep(5 * time.Millisecond)
			continue
		}
		status := response.Header.Get("Cache-Status")
		if limit == usualLimit {
			o.count(status)
		} else {
			o.others.Add(1)
		}
		o.judge(h, status, body, began, ended)
		time.Sleep(rand.N(4 * time.Millisecond))
	}
}

func (o *oracle) count(what string) {
	o.mu.Lock()
	o.answers[what]++
	o.mu.Unlock()
}

// counted is how many answers there were to the list that all ask for.
func (o *oracle) counted() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range o.answers {
		n += of
	}
	return n
}

// judge checks one answer.
func (o *oracle) judge(h *history, status string, body []byte, began, ended time.Time) {
	var p page
	if err := json.Unmarshal(body, &p); err != nil || len(p.Data) != 2 {
		o.accuse("%d rows: %s %v", len(p.Data), body, err)
		return
	}
	a, b := p.Data[0]["stockOnHand"], p.Data[1]["stockOnHand"]
	if a != b {
		o.accuse("half a transaction: %v and %v (%s)", a, b, status)
	}
	v, _ := strconv.Atoi(a.(string))
	h.mu.Lock()
	defer h.mu.Unlock()
	if v >= len(h.began) || h.began[v].After(ended) {
		o.accuse("from the future: %d", v)
		return
	}
	if strings.Contains(status, "stale-if-error") || v+1 >= len(h.committed) || h.committed[v+1].IsZero() {
		return
	}
	if stale := began.Sub(h.committed[v+1]); stale > 0 {
		o.mu.Lock()
		o.worst = max(o.worst, stale)
		o.mu.Unlock()
		if stale > freshnessBound {
			o.accuse("%s after the commit of %d, %d was shown as fresh (%s)", stale, v+1, v, status)
		}
	}
}

func (o *oracle) accuse(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wrong) < 20 {
		o.wrong = append(o.wrong, fmt.Sprintf(format, args...))
	}
}

// judgeTheEnd checks that all nodes show the last value in all lists.
func (o *oracle) judgeTheEnd() {
	for _, h := range o.histories {
		want := fmt.Sprintf(`"stockOnHand":"%d"`, h.last())
		for i, n := range o.fleet.nodes {
			for limit := usualLimit; limit > 1 && !n.stopped; limit -= 3 {
				a, err := n.try("GET", "/v1/items?limit="+strconv.Itoa(limit), h.key)
				if err != nil || a.StatusCode != 200 || strings.Contains(a.Header.Get("Cache-Status"), "stale-if-error") {
					continue // says so
				}
				if strings.Count(string(a.body), want) != 2 {
					o.accuse("after a quiet while node %d does not show %s (%s): %s", i, want, a.Header.Get("Cache-Status"), a.body)
				}
			}
		}
	}
}

// run writes and reads for d while fault happens, then is quiet, and then
// every node must show the last value.
func (o *oracle) run(t *testing.T, name string, d time.Duration, fault func()) (hitRate float64) {
	o.mu.Lock()
	o.worst, o.answers, o.wrong = 0, map[string]int{}, nil
	o.mu.Unlock()
	writing, stopWriting := context.WithCancel(context.Background())
	reading, stopReading := context.WithCancel(context.Background())
	var writers, readers sync.WaitGroup
	for i, h := range o.histories {
		writers.Go(func() { h.write(writing, o.fleet.url, writerPauses[i], o.forms) })
		for _, n := range o.fleet.nodes {
			if !n.stopped {
				readers.Go(func() { o.read(reading, n, h) })
			}
		}
	}
	ends := time.After(d)
	fault()
	<-ends
	within(t, patience, "enough answers to judge by", func() bool { return o.counted() >= leastAnswers })
	stopWriting()
	writers.Wait()
	time.Sleep(freshnessBound)
	stopReading()
	readers.Wait()
	o.judgeTheEnd()
	hits, all := 0, o.counted()
	for status, n := range o.answers {
		if strings.HasPrefix(status, "listedge; hit") {
			hits += n
		}
	}
	hitRate = float64(hits) / float64(all)
	t.Logf("%-38s worst %8s  hits %5.1f %% of %d  %v", name, o.worst.Round(time.Millisecond), 100*hitRate, all, o.answers)
	for _, w := range o.wrong {
		t.Errorf("%s: %s", name, w)
	}
	return hitRate
}
