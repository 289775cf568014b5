package limiter

import (
	"math"
	"sync/atomic"
)

// demand is how many requests a lease expects, from how many there were.
type demand struct {
	at        int64   // of the last note
	perWindow float64 // arrivals in one window
	span      int64   // the window, microseconds
}

// windowOf is what a lease is taken for: a tenth of a second, or what brings a
// quarter of the burst.
func windowOf(p Policy) int64 {
	if p.r == 0 {
		return denyMost
	}
	return max(1, min(denyMost, p.units()/(4*p.r)))
}

// note counts n arrivals since the last note: a window that slides.
func (d *demand) note(now, n int64, p Policy) {
	d.span = windowOf(p)
	dt := max(0, now-d.at)
	d.at = max(d.at, now)
	if dt >= d.span {
		d.perWindow = float64(n) * float64(d.span) / float64(dt)
		return
	}
	d.perWindow = float64(n) + d.perWindow*(1-float64(dt)/float64(d.span))
}

// window is the tokens to hold for one window.
func (d *demand) window() int64 { return int64(math.Ceil(d.perWindow)) }

// life is the tokens that a whole life of a lease would take: what a sparse key
// asks for, one that comes several times in it.
func (d *demand) life(p Policy, life int64) int64 {
	if life == 0 || d.span == 0 {
		return 0
	}
	n := d.perWindow * float64(life) / float64(d.span)
	if n < 2 {
		return 0
	}
	return int64(min(n, mostAsked))
}

// ahead is the low-water mark: what is spent while the next lease is fetched.
func (d *demand) ahead(p Policy) int64 {
	if p.Burst < leastLeased || d.span == 0 {
		return 0
	}
	return int64(math.Ceil(d.perWindow * prefetchAhead / float64(d.span)))
}

// patience is how long a lease may lie unused: a few times what usually passes
// between two requests (microseconds).
func (d *demand) patience(p Policy) int64 {
	if d.perWindow*float64(idleMost) <= 4*float64(d.span) {
		return idleMost
	}
	return max(idleLeast, int64(4*float64(d.span)/d.perWindow))
}

// idleness is since when nothing has happened to a lease.
type idleness struct {
	word    uint64
	refused int64
	since   int64
}

// over looks again, and reports whether nothing has changed for patience.
func (i *idleness) over(now int64, word uint64, refused, patience int64) bool {
	if i.word != word || i.refused != refused {
		*i = idleness{word: word, refused: refused, since: now}
	}
	return now-i.since >= patience
}

// view is the bucket as it was last seen, readable without a lock: seq is odd
// while it is written, under the lease's mu.
type view struct {
	seq             atomic.Uint32
	level, most, at atomic.Int64 // units then, units it can rise to, time
}

func (v *view) known() bool { return v.seq.Load() > 0 }

func (v *view) set(level, most, now int64) {
	v.seq.Add(1)
	v.level.Store(level)
	v.most.Store(most)
	v.at.Store(now)
	v.seq.Add(1)
}

func (v *view) get() (level, most, at int64) {
	for {
		seq := v.seq.Load()
		level, most, at = v.level.Load(), v.most.Load(), v.at.Load()
		if seq&1 == 0 && v.seq.Load() == seq {
			return level, most, at
		}
	}
}

// levelNow is what there must be by now, if nobody else took any, in units of p.
func (v *view) levelNow(p Policy, now int64) int64 {
	if !v.known() || p.r == 0 {
		return p.units()
	}
	level, most, at := v.get()
	return min(p.units(), max(level, grown(level, most, max(0, now-at), p.r)))
}
