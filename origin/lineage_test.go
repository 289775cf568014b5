package origin

import (
	"errors"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/origin/postgres"
)

// look is a position of a standby that rows are wanted from, at a moment, while it is known
// where the primary's WAL ended at another, or later.
type look struct {
	position uint64
	at       int
	run      string
	primary  uint64
	proven   int
	want     error
}

func TestLineage(t *testing.T) {
	lags, lost := postgres.ErrLagging, postgres.ErrOtherPrimary
	t.Run("looked at before a page is wanted", func(t *testing.T) {
		now := time.Now()
		for primary, want := range map[uint64]error{100: nil, 99: lost} {
			l, err := lineage{seen: 100, seenAt: now}.judge(100, now.Add(2), &changefeed.Proof{StartedAt: "a", LSN: primary, Moment: now.Add(1)})
			if !errors.Is(err, want) || l.primary != "a" {
				t.Errorf("%v, want %v: %+v", err, want, l)
			}
		}
	})
	for name, looks := range map[string][]look{
		"not taken before the primary was seen at a later moment": {
			{100, 10, "a", 100, 9, lags}, {100, 12, "a", 100, 9, lags}, {101, 13, "a", 100, 10, nil},
		},
		"ahead of what was known of the primary, as it is while that writes": {
			{105, 10, "a", 100, 9, lags}, {130, 20, "a", 120, 15, nil},
		},
		"taken from where the primary was": {
			{100, 10, "a", 90, 9, lags}, {105, 20, "a", 120, 15, lags}, {119, 21, "a", 130, 18, lags}, {120, 22, "a", 130, 18, nil},
		},
		"ahead of the primary": {
			{100, 10, "a", 60, 9, lags}, {100, 20, "a", 60, 15, lost}, {100, 30, "a", 200, 25, lost}, {300, 40, "a", 300, 35, lost},
		},
		"ahead of a primary that was restored": {
			{100, 10, "a", 100, 9, lags}, {100, 20, "a", 100, 15, nil}, // the primary is restored to 60
			{100, 30, "b", 60, 29, lags}, {100, 40, "b", 70, 35, lost}, {100, 50, "c", 200, 45, lost},
		},
		"ahead of a primary that has overtaken it unseen": {
			{100, 10, "a", 110, 9, lags}, {100, 20, "a", 120, 15, lags}, {100, 30, "a", 130, 25, lags},
		},
		"the primary's next run": {
			{100, 10, "a", 100, 9, lags}, {100, 20, "a", 100, 15, nil}, {100, 30, "b", 100, 29, lags}, {101, 40, "b", 101, 35, nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			moment := func(n int) time.Time { return began.Add(time.Duration(n)) }
			var l lineage
			for i, k := range looks {
				var err error
				l, err = l.judge(k.position, moment(k.at), &changefeed.Proof{StartedAt: k.run, LSN: k.primary, Moment: moment(k.proven)})
				if !errors.Is(err, k.want) {
					t.Errorf("look %d: %v, want %v", i, err, k.want)
				}
			}
		})
	}
}
