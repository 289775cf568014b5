package limiter

// view is the bucket as it was last seen by a lease, whose mu guards it. The
// zero view is of a bucket never seen.
type view struct {
	known           bool
	level, most, at int64 // units then, units it can rise to, time
}

// levelNow is what there must be at now under p, if nobody else took any. A bucket
// never seen is full.
func (v *view) levelNow(p Policy, now int64) int64 {
	if !v.known || p.r == 0 {
		return p.units()
	}
	return min(p.units(), max(v.level, grown(v.level, v.most, max(0, now-v.at), p.r)))
}

// rescale keeps the filled share of what was seen under another policy.
func (v *view) rescale(from, to Policy, now int64) {
	if from.r == 0 || to.r == 0 || !v.known {
		return
	}
	s := state{level: v.levelNow(from, now), policy: from}
	s.rescale(to)
	*v = view{known: true, level: s.level, most: to.units(), at: now}
}
