package origin

import (
	"errors"
	"testing"
	"time"
)

// look is a position of a standby that a page is wanted from, at a moment, while
// it is known where the primary's WAL ended at another, or later.
type look struct {
	position uint64
	at       int
	run      string
	primary  uint64
	proven   int
	want     error
}

func TestLineage(t *testing.T) {
	const lsn = 50 // that pages need
	t.Run("looked at before a page is wanted", func(t *testing.T) {
		now := time.Now()
		for primary, want := range map[uint64]error{100: nil, 99: ErrOtherPrimary} {
			l, err := lineage{seen: 100, seenAt: now}.judge(100, now.Add(2), &Needed{Run: "a", LSN: lsn, Primary: primary, At: now.Add(1)})
			if !errors.Is(err, want) || l.run != "a" {
				t.Errorf("%v, want %v: %+v", err, want, l)
			}
		}
	})
	for name, looks := range map[string][]look{
		"not taken before the primary was seen at a later moment": {
			{100, 10, "a", 100, 9, ErrLagging}, {100, 12, "a", 100, 9, ErrLagging}, {101, 13, "a", 100, 10, nil},
		},
		"ahead of what was known of the primary, as it is while that writes": {
			{105, 10, "a", 100, 9, ErrLagging}, {130, 20, "a", 120, 15, nil},
		},
		"taken from where the primary was": {
			{100, 10, "a", 90, 9, ErrLagging}, {105, 20, "a", 120, 15, ErrLagging}, {119, 21, "a", 130, 18, ErrLagging}, {120, 22, "a", 130, 18, nil},
		},
		"behind what the page needs": {{40, 10, "a", 40, 9, ErrLagging}, {45, 20, "a", 45, 11, ErrLagging}, {50, 30, "a", 50, 21, nil}},
		"a lost future": {
			{100, 10, "a", 60, 9, ErrLagging}, {100, 20, "a", 60, 15, ErrOtherPrimary}, {100, 30, "a", 200, 25, ErrOtherPrimary}, {300, 40, "a", 300, 35, ErrOtherPrimary},
		},
		"a lost future, seen before and after": {
			{100, 10, "a", 100, 9, ErrLagging}, {100, 20, "a", 100, 15, nil}, // the primary is put back to 60
			{100, 30, "b", 60, 29, ErrLagging}, {100, 40, "b", 70, 35, ErrOtherPrimary}, {100, 50, "c", 200, 45, ErrOtherPrimary},
		},
		"a lost future that the primary has overtaken unseen": {
			{100, 10, "a", 110, 9, ErrLagging}, {100, 20, "a", 120, 15, ErrLagging}, {100, 30, "a", 130, 25, ErrLagging},
		},
		"the primary's next run": {
			{100, 10, "a", 100, 9, ErrLagging}, {100, 20, "a", 100, 15, nil}, {100, 30, "b", 100, 29, ErrLagging}, {101, 40, "b", 101, 35, nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			moment := func(n int) time.Time { return began.Add(time.Duration(n)) }
			var l lineage
			for i, k := range looks {
				var err error
				l, err = l.judge(k.position, moment(k.at), &Needed{Run: k.run, LSN: lsn, Primary: k.primary, At: moment(k.proven)})
				if !errors.Is(err, k.want) {
					t.Errorf("look %d: %v, want %v", i, err, k.want)
				}
			}
		})
	}
}
