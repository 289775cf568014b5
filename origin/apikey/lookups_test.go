package apikey

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime"
)

func TestAQueryHasAShareForEachPriority(t *testing.T) {
	for _, c := range []struct{ waiting, taken [lookupPriorities]int }{
		{[lookupPriorities]int{0, 0, 0}, [lookupPriorities]int{0, 0, 0}},
		{[lookupPriorities]int{0, 0, 2000}, [lookupPriorities]int{0, 0, 1000}},
		{[lookupPriorities]int{2000, 2000, 2000}, [lookupPriorities]int{500, 250, 250}},
		{[lookupPriorities]int{2000, 0, 10}, [lookupPriorities]int{990, 0, 10}},
		{[lookupPriorities]int{10, 2000, 2000}, [lookupPriorities]int{10, 740, 250}},
		{[lookupPriorities]int{10, 20, 30}, [lookupPriorities]int{10, 20, 30}},
	} {
		q, n := lookupQueue{calls: map[Hash]*lookupCall{}}, 0
		of := map[*lookupCall]lookupPriority{}
		for p, waiting := range c.waiting {
			for range waiting {
				n++
				of[q.join([]Hash{{byte(n), byte(n >> 8)}}, lookupPriority(p))[0]] = lookupPriority(p)
			}
		}
		var taken [lookupPriorities]int
		_, calls := q.next()
		for _, call := range calls {
			taken[of[call]]++
		}
		if taken != c.taken || len(q.calls) != n-taken[knownKey]-taken[ordinaryKey]-taken[suspectKey] {
			t.Errorf("of %v: %v, want %v; %d stay", c.waiting, taken, c.taken, len(q.calls))
		}
	}
}

// A request may come after the scan, and find the entry after a look-up has confirmed it.
func TestAnEntryThatIsUsedAfterTheScanIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hash := Hash{1}
		one := func(context.Context, []Hash, string) (map[Hash]Key, error) { return map[Hash]Key{hash: {}}, nil }
		r := NewCache(one, nil, func(Key, *int) {}, time.Minute, boottime.New())
		defer r.Close()
		if _, err := r.load(t.Context(), ordinaryKey, hash); err != nil {
			t.Fatal(err)
		}
		later := r.clock.Now() + time.Hour
		r.scan(later)
		_, idle := r.scan(later + 2*idleTTL)
		if _, err := r.load(t.Context(), ordinaryKey, hash); err != nil || len(idle) != 1 {
			t.Fatal(idle, err)
		}
		if r.evictIdle(idle); r.find(hash) == nil {
			t.Error("a request that was about to find it gets: no such key")
		}
	})
}
