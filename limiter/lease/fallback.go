package lease

import "math"

// Fleet is what a node knows about its fleet at one moment.
type Fleet struct {
	Nodes   int64 // that share the buckets
	Missing int64 // of them, those that have sent no heartbeat lately
	Contact int64 // when this node last sent a heartbeat that may have reported it present
	Ahead   int64 // Redis' clock is ahead of this node's by at most so much; Forever = unknown
	Cold    bool  // this node has not counted the others yet
	Link    *Link // how long Redis takes to answer it
}

// fallback is a node's part of a bucket while Redis is unreachable. It begins with the
// node's part of the last known level. The node's part of the rate refills it as soon as
// the other nodes withhold that part. So all nodes together admit what the bucket would
// have admitted, and at most one burst more.
//
// The debt is what was spent here and the bucket must debit. It is at most what is missing
// from a full part. So after an outage of an hour the debt is what is missing now, and not
// all requests of that hour.
//
// A fallback is kept when Redis returns for a short time, so that many short outages
// admit no more than one long outage. A level that Redis reports in between can only
// lower it.
type fallback struct {
	level, debt int64 // micro-tokens
	at          int64 // level is refilled up to this time
	seen        int64 // the time of the newest level of the bucket that was applied to it
}

// parts is into how many parts each bucket is divided; one of them is this node's.
func (f *Fleet) parts() int64 { return max(1, f.Nodes) }

// part is this node's part of a full bucket, but at least a token.
func (l *Lease) part(f *Fleet) int64 { return max(Token, l.Policy.Units()/f.parts()) }

// TakeFallback decides a request without Redis. If it refuses, wait is how many microseconds until
// there may be a token. It refuses if the burst is smaller than the fleet, because this node has
// no part of it then. With admit, it admits the request even without a token.
func (l *Lease) TakeFallback(now int64, f *Fleet, admit bool) (ok bool, wait int64) {
	if l.Policy.Burst < f.Nodes && !f.Cold && !admit {
		return false, MissingAfter
	}
	a := l.refillFallback(now, f)
	if a.level < Token && !admit {
		return false, l.Policy.TimeFor((Token - a.level) * f.parts())
	}
	spent := min(Token, a.level)
	a.level -= spent
	a.debt += spent
	return true, 0
}

// refillFallback refills the fallback up to now, and makes it if there is none.
func (l *Lease) refillFallback(now int64, f *Fleet) *fallback {
	full, parts := l.part(f), f.parts()
	if f.Nodes > 1 && now > f.Contact { // until the others withhold this node's part, they may spend it
		now = max(f.Contact, now-MissingAfter)
	}
	a := l.fallback
	if a == nil {
		a = &fallback{level: full, at: now, seen: never}
		l.fallback = a
	}
	if now >= a.at {
		earned := math.Floor(float64(now-a.at) * float64(l.Policy.Rate) / 1e6 / float64(parts))
		a.level = min(full, a.level+int64(min(float64(full), earned)))
		a.debt = min(a.debt, full-a.level)
		a.at = now
	}
	if l.at > a.seen {
		a.seen = l.at
		a.level = min(a.level, max(0, l.levelAt(now))/parts)
	}
	return a
}

// debt is how many tokens the bucket must debit, rounded up.
func (l *Lease) debt() int64 {
	if l.fallback == nil {
		return 0
	}
	return (l.fallback.debt + Token - 1) / Token
}

// payDebt pays the fallback's debt with at most so many tokens that the bucket gave this node,
// and returns how many it took. There must be a fallback.
func (l *Lease) payDebt(tokens int64) int64 {
	paid := max(0, min(tokens, l.debt()))
	l.fallback.debt = max(0, l.fallback.debt-paid*Token)
	return paid
}
