package cache

import (
	"time"

	"listedge/internal/changefeed"
)

// trusted says whether everything visible bound ago has been applied here.
func (t *tracker) trusted(now time.Time) bool {
	return int64(t.clock.At(now)) < t.trustedUntil.Load()
}

// stands says whether nothing has touched what the page shows since it was
// known to be right. Together with trusted: rule 1, no lock.
func (t *tracker) stands(p *Entry) bool {
	s := p.sequence.Load()
	return s >= t.join.Load() && p.pair != nil && s >= p.pair.last.Load() && s >= p.whole.last.Load()
}

// revalidate is rule 2: all that has touched the page's pair since is in the
// rings, and was seen by the page's own statement. Then the page is as good as
// new.
func (t *tracker) revalidate(p *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := p.sequence.Load()
	if s < t.join.Load() || p.pair == nil || !p.pair.shownSince(s, p) || !p.whole.shownSince(s, p) {
		return false
	}
	p.sequence.Store(t.sequence)
	return true
}

// adopt is the same test for a page from Redis, which brings its position in
// the log along, and must have been read from the server that is followed here,
// or from a standby of it; a page that passes stands here from now on. It equalled the
// database at the moment of this node's own proof, whatever clocks say of when
// it was read, and is taken for no younger than that.
func (t *tracker) adopt(p *Entry, pair changefeed.List) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.joined || p.Epoch != t.epoch || p.Position.Compare(t.joinedAt) < 0 || t.isForeign(&p.View) {
		return false
	}
	state, whole := t.pairs.of(pair), t.whole[pair.Collection]
	if !state.shownAfter(p.Position, p) || !whole.shownAfter(p.Position, p) {
		return false
	}
	p.pair, p.whole = state, whole
	p.sequence.Store(t.sequence)
	p.begun = t.provenAt // what it shows is no older; else one that this node read later, and may not keep, would keep it out of memory
	if t.provenAt.Before(p.Proof) {
		p.Proof = t.provenAt
	}
	return true
}

// isForeign says whether a page was read neither from the primary that is
// followed, in its present run, nor from a standby of it.
func (t *tracker) isForeign(v *View) bool {
	if v.standby() {
		return v.Server != t.server
	}
	return v.Run != t.run
}

// follows says whether a page was read from what is followed, also while
// nothing is proven.
func (t *tracker) follows(v *View) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.joined && !t.isForeign(v)
}

// fillStart is what is remembered when a fill begins.
type fillStart struct {
	at   time.Time
	join uint64
	ok   bool // what it reads may be kept
}

func (t *tracker) begin() fillStart {
	now := time.Now()
	return fillStart{at: now, join: t.join.Load(), ok: t.trusted(now)}
}

// verdict says whether a page that was just read may be kept, and if not, why.
type verdict uint8

const (
	kept      verdict = iota
	untrusted         // nothing was proven when it was begun
	late              // it took longer than a fill may
	resynced          // this node began anew meanwhile
	unseen            // a change is known that its snapshot does not see
	behind            // a change is known that the standby had not replayed
	foreign           // not this primary, or not a standby of it
	verdicts
)

func (v verdict) String() string {
	return [...]string{"kept", "untrusted", "late", "resynced", "unseen", "behind", "foreign"}[v]
}

// accept decides whether a page that was just read may be kept: if its
// statement saw every change that is known here and that it might have missed.
// Of a standby that is every change there ever was; the proof of what it shows
// is then the node's own, and not the moment it was asked.
func (t *tracker) accept(start fillStart, p *Entry, pair changefeed.List) verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	standby := p.View.standby()
	switch {
	case !standby && t.run != "" && p.View.Run != t.run && t.trusted(time.Now()):
		return foreign // whatever was known when it was begun
	case !start.ok:
		return untrusted // and nothing is remembered: it could not be forgotten
	}
	state, whole := t.pairs.of(pair), t.whole[pair.Collection]
	switch {
	case start.join != t.join.Load():
		return resynced
	case time.Since(start.at) > t.fill:
		return late
	case standby && p.View.Server != t.server:
		return foreign
	case standby && (p.View.LSN < t.joinLSN || !state.shown(p) || !whole.shown(p)):
		return behind
	}
	p.pair, p.whole = state, whole
	if !state.shown(p) || !whole.shown(p) {
		return unseen
	}
	if standby {
		p.Proof = t.provenAt
	}
	p.Epoch, p.Position = t.epoch, t.position
	p.sequence.Store(t.sequence)
	return kept
}

// needed is what a standby must have replayed for a page of the pair to be
// kept; ok is false where none would be.
func (t *tracker) needed(pair changefeed.List) (n Needed, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.joined || t.server == "" || !t.trusted(time.Now()) {
		return Needed{}, false
	}
	return Needed{Server: t.server, Run: t.run, Primary: t.lsn, At: t.provenAt,
		LSN: max(t.joinLSN, t.pairs.of(pair).lastLSN, t.whole[pair.Collection].lastLSN)}, true
}

// primaryRun is when the primary was started; empty where that is not proven.
func (t *tracker) primaryRun(now time.Time) string {
	if !t.trusted(now) {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.run
}

// awaited says whether the page was read while a change of its pair was
// published and not yet visible, and still is not.
func (t *tracker) awaited(p *Entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return p.pair != nil && p.sequence.Load() == 0 && (p.pair.unsettled() || p.whole.unsettled())
}

// age is how long ago the page is known to have equalled the database.
func (t *tracker) age(p *Entry, now time.Time) time.Duration {
	age := t.clock.Between(p.Proof, now)
	if t.stands(p) {
		if proven := t.clock.At(now) - time.Duration(t.proof.Load()); proven >= 0 && proven < age {
			return proven
		}
	}
	return max(0, age)
}
