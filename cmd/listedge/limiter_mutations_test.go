//go:build mutations

package main

import "testing"

// The rules of the limiter, broken one at a time:
//
//	make mutations ONLY=TestLimiterMutations
func TestLimiterMutations(t *testing.T) {
	const pkg = "./limiter"
	one := func(name, run, file, old, new string) mutation {
		return mutation{name, []edit{{"limiter/" + file, old, new}}, pkg, run}
	}
	caught(t, []mutation{
		// level + held <= B, and who spends what until when.
		one("what is held does not count", "TestNeverOverAtSpending", "bucket.go", "return max(0, s.policy.Burst-s.held-s.prev) * s.policy.p", "return s.policy.units()"),
		one("what is held does not count, in the script", "TestScriptEqualsModel", "token_bucket.lua", "local cap = math.max(0, B - held - prev) * P", "local cap = B * P"),
		one("the epoch before does not count", "TestNeverOverAtTheEdgesOfEpochs", "bucket.go", "s.prev, s.held = s.held, 0", "s.prev, s.held = 0, 0"),
		one("a lease outlives what the bucket counts", "TestNeverOverAtTheEdgesOfEpochs", "books.go", "return sent + c.lasts - leaseSlack", "return sent + c.lasts + leaseLife"),
		one("a lease ends when the bucket forgets it", "TestLeaseEndsBeforeItAges", "books.go", "return sent + c.lasts - leaseSlack", "return sent + c.lasts"),
		one("released twice", "TestNeverOverAtTheEdgesOfEpochs", "books.go", "c.rel0, c.rel1 = l.strike(used + back)", "c.rel0, c.rel1 = l.strike(used + back)\n\t\t\tc.rel0 += used / 8"),
		one("what a slow Redis grants is not held", "TestNeverOverAtSpending", "bucket.go", "s.held += c.leased + c.hold*c.granted", "s.held += c.leased"),
		one("a slow Redis is waited for no longer", "TestLimitsHoldOnASlowRedis", "roundtrip.go", "return max(r.budget, min(2*r.recent.Load(), mostWait))", "return r.budget"),
		one("every outage begins anew", "TestManyShortOutagesAreOne", "alone.go", "l.local.level == l.local.policy.units() && l.local.level == l.local.most()", "true"),
		one("old answers admit", "TestNeverOverAtSpending", "flight.go", "\tcase l.link == nil:\n\t\treturn false\n", "\tcase true:\n\t\treturn false\n"),
		one("late grants go back", "TestLateGrantsDoNotGoBack", "flight.go", "\t\tif now-sent <= int64(flightTimeout/time.Microsecond) {\n\t\t\tl.payWith(granted, now)\n\t\t}\n", "\t\tif now-sent <= int64(flightTimeout/time.Microsecond) || true {\n\t\t\tl.ret += granted\n\t\t}\n"),
		one("a clock that steps back refills", "TestClockGoingBackwards", "bucket.go", "\t\t\ts.lag += s.ts - now\n\t\t\ts.ts = now\n\t\t\treturn false", "\t\t\ts.grow(s.ts - now)\n\t\t\ts.ts = now\n\t\t\treturn true"),
		one("an older policy comes back", "TestPolicyChangeKeepsTheFilledShare", "bucket.go", "case c.policy.Version > s.policy.Version:", "case c.policy.Version != s.policy.Version:"),

		// The deny cache.
		one("no deny cache", "TestFloodOnFiveAMinute", "deny.go", "l.deny.Store(now + pause)", "l.deny.Store(0)"),
		one("denied only to the next token", "TestRequestsHardlyEverAskRedis", "deny.go", "pause = pauseOf(pause, l.patience, l.policy)", ""),
		one("denied for longer than there is no token", "TestSmallBurstsAreAsPerRequest", "deny.go", "l.deny.Store(now + pause)", "l.deny.Store(now + 2*pause)"),

		// Sparse requests in process.
		one("spent before it is there", "TestSparseRequestsAreAsExactAsOthers", "sip.go", "now < s.ts || level < s.policy.p", "now < s.ts"),
		one("by the policy before", "TestSparseRequestsAreAsExactAsOthers", "sip.go", "c.policy == p && now", "now"),
		one("from a bucket that was dropped", "TestADroppedBucketIsFoundAgain", "sip.go", "!c.gone && c.policy", "c.policy"),
		one("a bucket goes with its handle", "TestABucketOutlivesItsHandle", "local.go", "!c.kept && c.state.untilAbsent(0) <= now-c.state.ts", "!c.kept"),

		one("leases amid a burst", "TestAWholeBurstAtOnce", "bucket.go", "(have-c.granted)/max(1, c.parts)", "have-c.granted"),
		one("the last of a burst is leased", "TestAWholeBurstAtOnce", "flight.go", "c.parts *= drainParts", "c.parts *= 1"),

		// The breaker.
		one("the breaker never opens", "TestBudgetAndBreakerToTheMillisecond", "dispatcher.go", "return c.ConsecutiveFailures >= tripAfter || l.now()-d.silence.Load() >= int64(flightTimeout/time.Microsecond)", "return false"),
		one("nobody probes", "TestBudgetAndBreakerToTheMillisecond", "dispatcher.go", "if d.failing() {\n\t\t\t\td.probe()", "if false {"),
		one("a replica that only reads closes the breaker", "TestReadOnlyRedisCountsAsAway", "redis.go", "\treturn err\n}\n\n// arguments", "\treturn nil\n}\n\n// arguments"),
		one("nobody convalesces", "TestHangUnderFlood", "alone.go", "l.ill.Store(until)", "l.ill.Store(0)"),
		one("what is owed and not there is forgotten", "TestStores", "bucket.go", "least := min(s.level, -(s.policy.Burst / 4 * s.policy.p))", "least := min(s.level, 0)"),

		// Heartbeats.
		one("every node thinks it is the only one", "TestColdNodesKeepThePromise", "nodes.go", "return max(f.size.Load(), coldNodes)", "return max(f.size.Load(), 1)"),
		one("an empty Redis makes the fleet one node", "TestNodesAreRememberedThroughAnEmptyRedis", "nodes.go", "f.size.Store(slices.Max(f.counts[:]))", "f.size.Store(slices.Max(f.counts[:1]))"),
		one("nodes that are gone are counted", "TestHeartbeats", "nodes.go", "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))", ""),
		one("parts are not parts", "TestPartsOfAFleet", "alone.go", "func (a *local) cost() int64 { return a.policy.p * a.nodes }", "func (a *local) cost() int64 { return a.policy.p }"),

		// The Cluster.
		one("ASK is a failure", "TestClusterSlotMoves", "redis.go", "\t\treturn askElsewhere{address}\n", "\t\treturn err\n"),
		one("MOVED is a failure", "TestClusterSlotMoves", "redis.go", "\t\treturn movedTo{address}\n", "\t\treturn err\n"),
		one("asked without ASKING", "TestClusterSlotMoves", "redis.go", "if asking {", "if asking && false {"),
		one("a bucket that moved is forgotten where it was", "TestClusterSlotMoves", "pipeline.go", "d.give(b, d.l.cluster.movedTo(moved.address))", "_ = moved\n\t\t\td.settle(b, false)"),
		one("one dispatcher for all masters", "TestCluster", "cluster.go", "d := c.nodes[address]\n", "d := c.nodes[address]\n\tfor _, any := range c.nodes {\n\t\td = any\n\t}\n"),
		one("two buckets, two trips", "TestCluster", "take.go", "l.wantBoth(t.leg[0].bucket, t.leg[1].bucket)", "l.want(t.leg[0].bucket)\n\t\ttime.Sleep(time.Millisecond) // else they may fall into one moment by chance\n\t\tl.want(t.leg[1].bucket)"),
	})
}
