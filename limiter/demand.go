package limiter

import "math"

const (
	windowMost    = 100_000 // microseconds that a lease is taken for, at most
	prefetchAhead = 2_000   // how soon a lease is empty when the next is asked for
	drainParts    = 4       // of what is left of a burst, a node leases its part divided by so many
)

// demand is how many requests a lease expects, from how many there were.
type demand struct {
	at        int64   // of the last note
	span      int64   // the window, microseconds
	perWindow float64 // arrivals in one window
	perLife   float64 // arrivals in one life of a lease
}

// windowOf is what a lease is taken for: a tenth of a second, or what brings a
// quarter of the burst.
func windowOf(p Policy) int64 {
	if p.r == 0 {
		return windowMost
	}
	return max(1, min(windowMost, p.units()/(4*p.r)))
}

// note counts n arrivals since the last note, in two windows that slide.
func (d *demand) note(now, n int64, p Policy) {
	d.span = windowOf(p)
	dt := max(0, now-d.at)
	d.at = max(d.at, now)
	d.perWindow = slid(d.perWindow, n, dt, d.span)
	d.perLife = slid(d.perLife, n, dt, leaseLife)
}

// slid is the arrivals in a window of span after n more in dt.
func slid(before float64, n, dt, span int64) float64 {
	if dt >= span {
		return float64(n) * float64(span) / float64(dt)
	}
	return float64(n) + before*(1-float64(dt)/float64(span))
}

// ask is what to lease beyond the need, balance being still in hand: what one
// window takes after the round trip, and spare tokens, for a key that is sparse but comes several
// times in the life of a lease: what the life takes. A burst below leastLeased
// is not leased from, and in process (life 0) asking costs nothing.
// extra, spare >= 0.
func (d *demand) ask(need, balance int64, p Policy, life, roundTrip int64) (extra, spare int64) {
	if p.Burst < leastLeased {
		return 0, 0
	}
	left := func(expected float64) int64 {
		return max(0, int64(min(math.Ceil(expected), mostAsked))-need-balance)
	}
	if life > 0 && d.perLife >= 2 && !d.drains(p) {
		spare = left(d.perLife)
	}
	return left(d.perWindow * float64(d.span+roundTrip) / float64(d.span)), spare
}

// drains reports whether requests come faster than tokens do: a burst is being
// spent, and says little of what comes after it.
func (d *demand) drains(p Policy) bool {
	return d.perWindow > max(1, float64(d.span*p.r)/float64(p.p))
}

// ahead is the low-water mark: what is spent while the next lease is fetched.
func (d *demand) ahead(p Policy, roundTrip int64) int64 {
	if p.Burst < leastLeased || d.span == 0 {
		return 0
	}
	return int64(math.Ceil(d.perWindow * float64(prefetchAhead+roundTrip) / float64(d.span)))
}

// patience is how long a lease may lie unused: a few times what usually passes
// between two requests (microseconds).
func (d *demand) patience() int64 {
	return int64(max(idleLeast, min(idleMost, 4*leaseLife/max(1, d.perLife))))
}

// busy: more requests than need be shown the level to the token.
func (d *demand) busy() bool { return d.perWindow*shownFor >= busyFrom*float64(d.span) }
