package limiter

import "time"

// probe tries a node that is away, at most every probeEvery, so that no request
// has to. It writes: a replica that only reads does not close the breaker.
func (d *dispatcher) probe() {
	if d.away.Load() && time.Since(d.probed) < probeEvery {
		return
	}
	d.probed = time.Now()
	if d.route != nil {
		if report, err := d.breaker.Allow(); err == nil {
			report(d.l.cluster.answers())
		}
		return
	}
	key := "rl:{probe}"
	if d.l.cluster != nil {
		key = d.l.cluster.rehome(d)
		if key == "" {
			d.retire()
			return
		}
	}
	if d.probing.Load() {
		return
	}
	report, err := d.breaker.Allow()
	if err != nil {
		return
	}
	d.probing.Store(true)
	p := Policy{Rate: microsPerSecond, Burst: 1, r: 1, p: 1}
	d.launch(&pipeline{calls: []call{{key: key, policy: p, life: leaseLife, need: 1}}}, func(err error) {
		d.probing.Store(false)
		report(err)
	})
}

// retire ends the dispatcher of a node that the Cluster has no more: its breaker
// would stay open for ever, and say so.
func (d *dispatcher) retire() {
	d.retired.Store(true)
	d.l.cluster.drop(d)
}
