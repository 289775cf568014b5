package cache

import (
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
)

// Mode is what the freshness of pages rests on.
type Mode uint8

// The modes.
const (
	ModeTTL       Mode = iota // pages age: changes cannot be followed
	ModeUntrusted             // changes are followed, but nothing is proven at the moment
	ModeFollowed              // pages are proven
)

func (m Mode) String() string { return [...]string{"ttl", "untrusted", "followed"}[m] }

// shareFactor: a query's answer may be shared for bound/shareFactor.
const shareFactor = 4

// following is a tracker, and whether pages go by it. Its methods may be called
// on nil, which follows nothing.
type following struct {
	*tracker
	database *changefeed.Followed // that the changes are of
	ttl      atomic.Bool          // changes cannot be followed, for now
	verdicts [verdicts]atomic.Uint64
}

// on says whether pages are judged by changes and not by age.
func (f *following) on() bool { return f != nil && !f.ttl.Load() }

func (f *following) begin() fillStart {
	if !f.on() {
		return fillStart{at: time.Now()}
	}
	return f.tracker.begin()
}

// fresh is the serving rule. While nothing is proven, or a change is published
// and not yet visible, what was read a moment ago is shared: it omits nothing
// older than that moment.
func (f *following) fresh(p *Entry, now time.Time) bool {
	if f.trusted(now) {
		return f.stands(p) || f.revalidate(p) || f.awaited(p) && f.recent(p, now)
	}
	return f.recent(p, now)
}

func (f *following) recent(p *Entry, now time.Time) bool {
	return f.clock.Between(p.Proof, now) < f.bound/shareFactor
}

// run is when the primary was started, if anything is known of it.
func (f *following) run() string {
	if !f.on() {
		return ""
	}
	return f.primaryRun(time.Now())
}

// count counts a page that is not kept.
func (f *following) count(v verdict) {
	if f != nil {
		f.verdicts[v].Add(1)
	}
}

// accept decides whether a page may be kept; one of the primary that may not
// is still shared, unless it is foreign.
func (f *following) accept(start fillStart, p *Entry, pair changefeed.List, filled *FillResult) verdict {
	p.View = View{Run: filled.Run, Server: filled.Server, LSN: filled.LSN}
	if !p.View.standby() {
		var err error
		if p.View.Snapshot, err = changefeed.ParseSnapshot(filled.Snapshot); err != nil {
			return unseen
		}
	}
	v := foreign
	if f.database.OldTimeline() == nil || f.follows(&p.View) {
		v = f.tracker.accept(start, p, pair)
	}
	f.verdicts[v].Add(1)
	return v
}

func (f *following) describe(s *Stats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.ProofAge = f.clock.Now() - time.Duration(f.proof.Load())
	s.Bound = f.bound
	s.Lag, s.Pairs = f.lag.histogram(), len(f.pairs.known)
	s.Rejected = map[string]uint64{}
	for v := kept + 1; v < verdicts; v++ {
		s.Rejected[v.String()] = f.verdicts[v].Load()
	}
}
