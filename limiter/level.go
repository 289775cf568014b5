package limiter

import "time"

// shownFor is how old a level may be that a busy bucket's requests are shown,
// and busyFrom how many requests in that time make it one.
const shownFor, busyFrom = 50_000, 16

// Level is how a bucket stands: what it was last seen to have, what the rate
// has brought since, and what this node holds of it.
type Level struct {
	Remaining int64         // whole tokens left
	Next      time.Duration // time until there is one more; 0 when the bucket is full
	Full      time.Duration // time until the bucket is full
}

// LevelAt is how the bucket stands at that moment, as far as this node knows.
// While it decides alone, that is how its own part does. Zero of no bucket. The
// clock is read as for TakeAt.
func (b *Bucket) LevelAt(at time.Time) Level {
	if b == nil {
		return Level{}
	}
	now, p, l := b.owner.since(at), b.policy.Load(), &b.lease
	if c := b.cell.Load(); c != nil {
		return c.level(l.holds(now), now)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.local; l.owes(now) {
		left := max(0, a.level) / a.cost()
		return Level{Remaining: left, Next: micros(ceilDiv((left+1)*a.cost()-a.level, a.policy.r)), Full: untilFull(p, left*p.p)}
	}
	return levelOf(p, l.view.levelNow(*p, now)+(l.holds(now)+l.ret+l.giving)*p.p)
}

func levelOf(p *Policy, units int64) Level {
	units = max(0, min(p.units(), units))
	level := Level{Remaining: units / p.p, Full: untilFull(p, units)}
	if level.Remaining < p.Burst && p.r > 0 {
		level.Next = micros(ceilDiv((level.Remaining+1)*p.p-units, p.r))
	}
	return level
}

func untilFull(p *Policy, units int64) time.Duration {
	if p.r == 0 {
		return 0
	}
	return micros(ceilDiv(max(0, p.units()-units), p.r))
}

// Stamp saves working out levels for every request where there are many: as
// long as it stays the same for two buckets (nil where there is one, or none),
// requests may be shown the same Level of them, which is then at most 50 ms
// old. 0: show this one its own. now is read as for TakeAt.
func (l *Limiter) Stamp(now time.Time, key, workspace *Bucket) uint64 {
	seen := uint32(0)
	if key != nil {
		if !key.lease.busy.Load() {
			return 0
		}
		seen = key.lease.seen.Load()
	}
	if workspace != nil {
		if !workspace.lease.busy.Load() {
			return 0
		}
		seen += workspace.lease.seen.Load() // neither ever goes back: the sum is as good as both
	}
	return uint64(l.since(now)/shownFor+1)<<32 | uint64(seen)
}
