package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// keptPages nearly fill a node's budgets, of rows and of pages with their compressed forms.
const keptPages = 4000

// measureMemory compares the memory that a node's pages occupy with their
// bytes, identity and gzip together, and tells how soon a node is ready.
func measureMemory(ctx context.Context, s *subject, r *report) error {
	began := time.Now()
	node := must1(s.startNode())
	defer node.end()
	must(node.awaitMode(ctx, ""))
	r.ratio("start to ready, s, against one second", "%.2f", time.Since(began).Seconds(), 1, 1)

	c := node.client(s.key)
	must1(c.walk(ctx, 1)) // what the first page brings with it is not the pages'
	before := must1(node.settled())
	paths := must1(c.walk(ctx, keptPages))
	_, stored := must2(c.getAll(paths, "identity"))
	_, compressed := must2(c.getAll(paths, "gzip")) // from now on each page is kept in both forms
	stored += compressed
	after := must1(node.settled())
	perPage := func(bytes int) float64 { return float64(bytes) / float64(len(paths)) }
	r.ratio(fmt.Sprintf("%d pages of 50 items: bytes of heap per page after a collection, against its bytes", len(paths)), "%.0f",
		perPage(after.heap-before.heap), perPage(stored), 1.35)
	r.ratio("… resident bytes per page, the next collection's garbage included", "%.0f", perPage(after.resident-before.resident), perPage(stored), 1.35)
	return nil
}

// occupied is a process's memory, in bytes.
type occupied struct{ heap, resident int }

// settled has the node collect its garbage and tells what is left.
func (s *server) settled() (o occupied, err error) {
	for range 2 { // what the first frees of pools, the second frees of the heap
		answer, err := http.Get("http://" + s.admin + "/debug/pprof/heap?gc=1")
		if err != nil {
			return o, err
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
	o.heap = int(s.metric("go_memstats_heap_alloc_bytes"))
	o.resident = int(s.metric("process_resident_memory_bytes"))
	return o, nil
}
