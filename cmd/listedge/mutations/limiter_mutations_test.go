//go:build mutations

package mutations

import "testing"

// The rules of the limiter, broken one at a time:
//
//	make mutations ONLY=TestLimiterMutations
func TestLimiterMutations(t *testing.T) {
	lease := func(name, run, file, old, new string) mutation {
		return mutation{name, []edit{{"limiter/lease/" + file, old, new}}, "./limiter/lease", run}
	}
	node := func(name, run, file, old, new string) mutation {
		return mutation{name, []edit{{"limiter/" + file, old, new}}, "./limiter", run}
	}
	caught(t, []mutation{
		// level + held <= burst, and who spends what until when.
		lease("what is held does not count", "TestNeverOverAtSpending", "leasetest/bucket.go", "return max(0, b.Policy.Burst-b.HeldNow-b.HeldBefore) * lease.Token", "return b.Policy.Units()"),
		node("what is held does not count, in the script", "TestScriptEqualsModel", "token_bucket.lua", "return max(0, stored_burst - held_now - held_before) * TOKEN", "return stored_burst * TOKEN"),
		lease("the slice before does not count", "TestNeverOverAtTheEdgesOfSlices", "leasetest/bucket.go", "b.HeldBefore, b.HeldNow = b.HeldNow, 0", "b.HeldBefore, b.HeldNow = 0, 0"),
		lease("a lease outlives what the bucket counts", "TestNeverOverAtTheEdgesOfSlices", "lease.go", "g.end = sent + r.Lasts - leaseSlack", "g.end = sent + r.Lasts + Slice"),
		lease("a lease ends when the bucket forgets it", "TestLeaseEndsBeforeItAges", "lease.go", "g.end = sent + r.Lasts - leaseSlack", "g.end = sent + r.Lasts"),
		lease("released twice", "TestNeverOverAtTheEdgesOfSlices", "lease.go", "int64(g.slice), int64(used-rel1), int64(rel1)", "int64(g.slice), int64(used-rel1+used/8), int64(rel1)"),
		lease("what a slow Redis grants is not held", "TestWhatComesLateCountsAsHeld", "leasetest/bucket.go", "b.HeldNow += c.Leased + c.Hold*c.Granted", "b.HeldNow += c.Leased"),
		lease("a slow Redis is waited for no longer", "TestLimitsHoldOnASlowRedis", "call.go", "return max(k.Budget, min(2*k.recent.Load(), MaxWait))", "return k.Budget"),
		lease("a clock that steps back refills", "TestNeverOverAtSpending", "leasetest/bucket.go", "\t\t\tb.ClockLag += b.RefilledAt - now\n", "\t\t\tb.grow(b.RefilledAt-now, missing, nodes)\n\t\t\tb.ClockLag += b.RefilledAt - now\n"),

		// The deny cache.
		lease("no deny cache", "TestFloodOnFiveAMinute", "call.go", "l.deny = from + min(c.Wait, ", "l.deny = 0*from + 0*min(c.Wait, "),
		lease("denied for longer than there is no token", "TestSmallBurstsAreAsPerRequest", "call.go", "l.deny = from + min(c.Wait, ", "l.deny = from + 2*min(c.Wait, "),
		lease("denied only to the next token", "TestRequestsHardlyEverAskRedis", "call.go", "l.deny = max(l.deny, now+min(pause, l.Policy.TimeFor(l.Policy.Units()/10)))", ""),

		// Leases and demand.
		lease("leases amid a burst", "TestAWholeBurstAtOnce", "leasetest/bucket.go", "bound = have / (3 * nodes)", "bound = have"),
		lease("a lease is all there is", "TestAClientThatSpendsWhatIsShown", "leasetest/bucket.go", "(have + held) / max(minParts, 2*nodes+1)", "have + held"),
		lease("first come, first served", "TestFairness", "call.go", "\t\tl.chance = chance\n", ""),
		lease("others take nothing", "TestWhatIsShownMayBeHad", "lease.go", "taken := max(", "taken := 0 * max("),

		// Without Redis.
		lease("the share of missing nodes is not held back", "TestPartOfTheFleetIsCutOff", "leasetest/bucket.go", "missing, nodes := c.Missing, max(1, c.Nodes)", "missing, nodes := int64(0), max(1, c.Nodes)"),
		lease("a node refills at once", "TestPartOfTheFleetIsCutOff", "fallback.go", "now = max(f.Contact, now-MissingAfter)", "_ = MissingAfter"),
		lease("a part is not a part", "TestPartOfTheFleetIsCutOff", "fallback.go", "return max(1, f.Nodes)", "return 1"),
		lease("a burst smaller than the fleet is divided", "TestSmallBurstsWhileRedisIsAway", "fallback.go", "!f.Cold {\n\t\treturn 0\n", "!f.Cold {\n\t\treturn 1\n"),
		lease("debts are forgotten", "TestHangUnderFlood", "fallback.go", "tokens := l.debt()", "tokens := int64(0)"),
		lease("a late answer pays no debt", "TestALateFirstAnswerPaysForWhatWasDecidedWithoutIt", "fallback.go", "paid := max(0, min(tokens, l.debt()))", "paid := int64(0)"),
		node("a quota that is lowered forgets its debt", "TestAQuotaLoweredWithoutRedisKeepsItsDebt", "quota.go", "q.spent-q.taken < q.left(now, 1)", "0 < q.left(now, 1)"),
		node("an unknown quota is a full one", "TestALateAnswerDoesNotFillAQuota", "quota.go", "(q.answered != never || s.refuses())", "true"),
		node("every node thinks it is the only one", "TestNodesAreRememberedThroughAnEmptyRedis", "membership.go", "Nodes: slices.Max(m.counts[:])", "Nodes: min(1, slices.Max(m.counts[:]))"),
		node("an empty Redis makes the fleet one node", "TestNodesAreRememberedThroughAnEmptyRedis", "membership.go", "Nodes: slices.Max(m.counts[:])", "Nodes: slices.Max(m.counts[:1])"),
		node("nodes that are gone are counted", "TestHeartbeats", "membership.go", "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before(MEMBER_LIFE))", ""),
		node("the breaker never opens", "TestBudgetAndBreakerToTheMillisecond", "shard.go", "\t\ts.downAt = now\n\t\ts.down.Store(true)\n", "\t\ts.downAt = now\n"),

		{"contact is an answered heartbeat", []edit{
			{"limiter/membership.go", "\t\tm.contact = sent\n\t\tm.publish()\n", "\t\tm.publish()\n"},
			{"limiter/membership.go", "\tif arrived {\n\t\tm.counted", "\tif arrived && state == present {\n\t\tm.contact = sent\n\t}\n\tif arrived {\n\t\tm.counted"},
			{"limiter/membership.go", "if m.unanswered || m.shard.unreachable() || m", "if m"},
		}, "./limiter", "TestOneNodeLosesOneShard"},

		// Quotas.
		node("a changed block stays", "TestAChangedQuotaKeepsWhatWasSpent", "quota.go", "		q.giveBack()\n		q.deny = 0\n", "		q.deny = 0\n"),
		node("the part of a quota is of a full one", "TestAQuotaWithoutRedis", "quota.go", "return q.tokens - q.total -", "return q.tokens -"),
		node("a late call to a quota is executed", "TestQuotaScriptEqualsModel", "quota.lua", "if number <= known then return { mine, total } end", ""),
		node("a lost count stays lost", "TestALostCountComesBack", "quota.go", "c.floor = max(q.spent, q.taken)", "c.floor = 0"),
		node("a lost answer loses a block", "TestAQuotaInStorms", "quota_model_test.go", "n.number, n.taken = c.number, c.floor+more", "n.number = c.number"),
		node("a quota is forgotten", "TestAQuotaIsRemembered", "quota.go", "if time.Now().UnixMicro() > old.until", "if 0 <= old.until"),
		node("a request that a rate refuses costs the quota a token", "TestQuotas", "limiter.go", "		quota.refund()\n", ""),
		{"a request counts in the period of another", []edit{{"edge/client.go", "p != nil && !now.Before(p.begin) && now.Before(p.end)", "p != nil"}}, "./edge", "TestTheNextPeriodBegins"},

		// Handles, pipelines, the Cluster, Close.
		node("a bucket in use is forgotten", "TestABucketIsRememberedUntilItIsFull", "active.go", "\ta.buckets[b] = struct{}{}\n", ""),
		node("two buckets, two trips", "TestOnePipelineAMoment", "leased.go", "\ts.enqueue(calls...)\n", "\tfor _, b := range calls {\n\t\ts.enqueue(b)\n\t\ttime.Sleep(time.Millisecond)\n\t}\n"),
		node("requests wait for ever", "TestLongestWait", "leased.go", "time.Duration(longest)*time.Microsecond", "time.Minute"),
		node("the script is sent once", "TestScriptIsLoadedWhereItIsMissing", "redis.go", "r.send(ctx, unknown, \"eval\", tokenBucketScript)", ""),
		node("a call is sent again", "TestACallIsCarriedOutOnceAtMost", "redis.go", "NoRetry() bool { return true }", "NoRetry() bool { return false }"),
		node("all masters are one shard", "TestAHungShardCostsOthersNothing", "redis.go", "return uint8(i)", "return 0"),
		node("a node beats where it is asked for", "TestOneNodeLosesOneShard", "membership.go", "\t\td.shardOf(membersKey(i))\n", "\t\t_ = i\n"),
		node("all go back at once", "TestCloseGivesManyLeasesBack", "shard.go", " || s.inFlight >= maxPipelines {", " {"),
		node("the fewest tokens go back first", "TestCloseGivesManyLeasesBack", "shard.go", "cmp.Compare(held[b], held[a])", "cmp.Compare(held[a], held[b])"),
		node("a heartbeat opens the way after Close", "TestCloseIsForGood", "leased.go", "return s.down.Load() || s.d.closed.Load()", "return s.down.Load()"),
	})
}
