package cache

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"listedge/internal/changefeed"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Many workspaces send the same queries at the same time to two nodes on one Redis. Memory
// is small, pages become stale quickly, and the origin sometimes fails. Each body names its
// workspace and its query, in every encoding, and so shows a mix-up. Keys are overwritten
// right after each call.
func TestNoWorkspaceGetsAnothersEntry(t *testing.T) {
	_, client := startRedis(t)
	options := Options{Memory: 1 << 20, Redis: client, TTL: 30 * time.Millisecond, MaxStale: time.Minute}
	nodes := []*Cache{open(t, options), open(t, options)}
	var workspaces [12][16]byte
	for i := range workspaces {
		workspaces[i][i%2*15] = byte(i/2 + 1) // workspaces that differ in one byte
	}
	questions := []string{"", "a", "aa", "type=goods", "type=services"}
	var all sync.WaitGroup
	var mu sync.Mutex
	seen := map[Source]int{}
	collapsed, stale := 0, 0
	for worker := range 12 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(8, uint64(worker)))
			var scratch []byte
			for range 500 {
				workspace, question := workspaces[random.IntN(len(workspaces))], questions[random.IntN(len(questions))]
				answer := bytes.Repeat(fmt.Appendf(nil, "%x asked %q; ", workspace, question), 20)
				scratch = AppendKey(scratch[:0], workspace, []byte(question), []byte{50}, nil)
				node := nodes[random.IntN(len(nodes))]
				failing := random.IntN(40) == 0
				r, ok := node.Hit(scratch, time.Now())
				if !ok {
					var err error
					r, err = node.Forward(scratch, changefeed.List{}, Fill{Primary: func(context.Context, string) (FillResult, error) {
						if failing {
							return FillResult{}, errOrigin
						}
						return FillResult{Body: bytes.Clone(answer), Next: hex.EncodeToString(workspace[:])}, nil
					}})
					if err != nil {
						if !errors.Is(err, errOrigin) {
							t.Error(err)
						}
						continue
					}
				}
				clear(scratch)
				unzipped, err := goGunzip(gzipMember(r.Entry.Body, r.Entry.Deflate(), r.Entry.CRC, "tail"))
				if !bytes.Equal(r.Entry.Body, answer) || r.Entry.Next != hex.EncodeToString(workspace[:]) || err != nil || string(unzipped) != string(answer)+"tail" {
					t.Errorf("%x asked %q and got, from %v, %.70s", workspace, question, r.Source, r.Entry.Body)
					return
				}
				mu.Lock()
				seen[r.Source]++
				if r.Collapsed {
					collapsed++
				}
				if r.Err != nil {
					stale++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	// Pages came in every possible way.
	if seen[Memory] == 0 || seen[Redis] == 0 || seen[Origin] == 0 || collapsed == 0 || stale == 0 {
		t.Fatalf("%v, %d collapsed, %d stale", seen, collapsed, stale)
	}
	t.Logf("%v, %d collapsed, %d stale", seen, collapsed, stale)
}
