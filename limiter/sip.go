package limiter

// apart is how long after the one before a request comes whose bucket is not
// leased from, in microseconds. In process a lease spares the requests that
// come at once a lock; of a hundred a second each has it for itself.
const apart = 10_000

// sip takes a token for a sparse request from its bucket in this process, and
// reports whether it did; if not, the lease decides. Where there are many keys,
// waiting for a lease's books to come into the processor's cache is what costs
// most of a decision: they are left alone where they hold nothing.
func (b *Bucket) sip(now int64) bool {
	c := b.cell.Load()
	return c != nil && b.lease.word.Load() == 0 && c.sip(b.policy.Load(), now)
}

func (c *cell) sip(p *Policy, now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone && c.policy == p && now-c.state.ts >= apart && c.state.sip(now)
}

// level is how the bucket stands, of which a lease holds so many tokens.
func (c *cell) level(held, now int64) Level {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.state
	return levelOf(&s.policy, s.levelAt(now)+held*s.policy.p)
}

// sip is a visit that needs one token and nothing else, in process, where it
// is granted; else nothing has happened.
func (s *state) sip(now int64) bool {
	level := s.levelAt(now)
	if now < s.ts || level < s.policy.p {
		return false
	}
	s.level, s.ts = level-s.policy.p, now
	return true
}

// levelAt is the level at now, in process.
func (s *state) levelAt(now int64) int64 {
	return max(s.level, grown(s.level, s.cap(), max(0, now-s.ts), s.policy.r))
}
