package limiter

import "context"

// store is where buckets live: Redis, this process, or, while Redis is away,
// the handles themselves. One suite runs over the first two.
type store interface {
	// visit carries out the calls in order, each atomic in its own bucket, and
	// fills in their replies. An error means that nothing is known: each call
	// may have been carried out or not. No policy may be a blocked one.
	visit(ctx context.Context, calls []call) error
}

// pair is the one or two buckets of a request, taken from together.
type pair struct {
	key   *Bucket // which of the calls is the key's; nil = none
	calls [2]call
	n     int

	allowed bool
	refused Which
	wait    int64   // microseconds until the buckets that refused have a token
	stray   *Bucket // holds a token less than it should: giving back failed
}

// set prepares the pair for one token of each bucket that is not nil. It
// reports the first that is blocked, which no store may be asked about.
func (p *pair) set(key, workspace *Bucket) (blocked Which) {
	*p = pair{key: key}
	if key != nil && p.add(key) {
		return Key
	}
	if workspace != nil && workspace != key && p.add(workspace) {
		return Workspace
	}
	return Neither
}

func (p *pair) add(b *Bucket) (blocked bool) {
	policy := b.Policy()
	p.calls[p.n] = call{bucket: b, policy: policy, need: 1}
	p.n++
	return policy.r == 0
}

// take takes one token from every bucket of the pair or from none: a token
// taken while the other bucket refused goes back at once. Leases will do this
// with a token of the node's own, without a second visit.
func (p *pair) take(ctx context.Context, s store) error {
	calls := p.calls[:p.n]
	if err := s.visit(ctx, calls); err != nil {
		return err
	}
	p.allowed = true
	taken := -1
	for i := range calls {
		if calls[i].granted > 0 {
			taken = i
			continue
		}
		p.allowed = false
		// A refusal without a wait is a clock that stepped: the next visit grants.
		if wait := max(1, calls[i].wait); wait > p.wait {
			p.wait, p.refused = wait, Workspace
			if calls[i].bucket == p.key {
				p.refused = Key
			}
		}
	}
	if p.allowed || taken < 0 {
		return nil
	}
	back := calls[taken : taken+1]
	back[0].need, back[0].ret, back[0].debt = 0, 1, 0
	if s.visit(ctx, back) != nil {
		p.stray = back[0].bucket
	}
	return nil
}

// decision puts the outcome into words.
func (p *pair) decision(source Source) Decision {
	d := Decision{Allowed: p.allowed, Refused: p.refused, RetryAfter: micros(p.wait), Source: source}
	for i := range p.calls[:p.n] {
		c := &p.calls[i]
		level := Level{Remaining: c.remaining, Full: micros(c.full)}
		if c.bucket == p.key {
			d.Key = level
		} else {
			d.Workspace = level
		}
	}
	return d
}
