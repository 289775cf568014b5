//go:build mutations

package mutations

import (
	"regexp"
	"strings"
)

// change makes others of the lines that have the mutation's name, in the order of files and lines.
type change func(lines []string)

// The changes of a line. A condition stands behind if, for, case, return or =.
var (
	never  = condition("false && ") // the condition is false
	always = condition("true || ")  // the condition is true
	gone   = instead("")            // the line is removed
)

func condition(prefix string) change {
	pattern := regexp.MustCompile(`^(\s*(?:(?:\} else )?if (?:.*; )?|for |case |return |\S+ :?= ))(.*?)( \{|:|)$`)
	return each(func(line string) string { return pattern.ReplaceAllString(line, "${1}"+prefix+"(${2})${3}") })
}

func instead(text string) change { return each(func(string) string { return text }) }
func after(text string) change   { return each(func(line string) string { return line + "\n" + text }) }
func without(text string) change { return replaced(text, "") }

// replaced replaces the one occurrence of a text in the line.
func replaced(old, text string) change {
	return each(func(line string) string {
		if strings.Count(line, old) != 1 {
			return line
		}
		return strings.Replace(line, old, text, 1)
	})
}

func each(one func(line string) string) change {
	return func(lines []string) {
		for i, line := range lines {
			lines[i] = one(line)
		}
	}
}

// inTurn changes each line in a way of its own.
func inTurn(all ...change) change {
	return func(lines []string) {
		for i, one := range all[:min(len(all), len(lines))] {
			one(lines[i : i+1])
		}
	}
}

// mutations are the rules, by the packages whose tests must notice.
var mutations = []struct {
	pkg string
	of  []mutation
}{
	{"origin/admin", []mutation{
		{"no row", replaced("Write(ctx, tx, done", "CheckActor(done.Action"), "TestEachActHasOneRowInTheAuditLog"},
		{"a row before the change is committed",
			after("if err == nil {\nerr = tx.Commit(ctx)\n}\nif err == nil {\ntx, err = c.conn.Begin(ctx)\n}"), "TestAFailedActLeavesNoRow"},
		{"every field is a change", always, "TestEachActHasOneRowInTheAuditLog"},
		{"the system user instead of the actor", replaced("name", "name[:0] + SystemUser()"), "TestEachActHasOneRowInTheAuditLog"},
		{"a logical subscription may change it", replaced("UPDATE OR DELETE", "INSERT"), "TestTheAuditLogIsAppendOnly"},
		{"the log can be emptied", without("OR TRUNCATE "), "TestTheAuditLogIsAppendOnly"},
		{"replication sessions may change it", without("ALWAYS "), "TestTheAuditLogIsAppendOnly"},
		{"a key is not found by what replaced it", without(" OR details ->> '`+audit.NewKey+`' = $2::text"), "TestTheAuditLogIsFiltered"},
		{"a publication that stays is in the log", never, "TestMigrationsAreInTheAuditLog"},
		{"a rotation extends the old key",
			replaced("least(expires_at, clock_timestamp() + $2::interval)", "clock_timestamp() + $2::interval"), "TestRotatingAKey"},
		{"a rotation extends what the client has",
			replaced("coalesce(clock_timestamp() + $4::interval, least(expires_at, revoked_at))", "clock_timestamp() + $4::interval"), "TestRotatingAKey"},
		{"a key that has ended is rotated", never, "TestRotatingAKey"},
		{"a rotation does not wait for the row", without(" FOR NO KEY UPDATE"), "TestARotationThatWaited"},
		{"a revocation to come is one", replaced("<= clock_timestamp() THEN 'revoked", "IS NOT NULL THEN 'revoked"), "TestStatesOfKeys"},
	}},
	{"origin/apikey", []mutation{
		{"not invalidated when a change settles", replaced("Settled", "Settled[:0]"), "TestALookupBeforeAChangeIsVisibleIsInvalidated"},
		{"not invalidated before a change settles", gone, "TestAChangeInvalidatesBeforeItIsVisible"},
		{"gaps ignored", never, "TestNoAnswerReliesOnAKeyThatWasChangedLongAgo"},
		{"proven until now", replaced("Of(b.Moment", "Now("), "TestAProofIsAsOldAsItsMoment"},
		{"proven since the moment", replaced("Now(", "Of(b.Moment"), "TestAProofCoversLookupsAfterItsBeginning"},
		{"proven across a reset", gone, "TestNoAnswerReliesOnAKeyThatWasChangedLongAgo"},
		{"proven before the proof", without("lookedUp > p.since && "), "TestAProofCoversLookupsAfterItsBeginning"},
		{"proven of any server", without(" && p.run == run"), "TestAProofCoversOneServer"},
		{"an old proof names the server", without(" && now-p.until < maxAge"), "TestAnOldProofNamesNoServer"},
		{"nothing is invalidated", never, "TestNoAnswerReliesOnAKeyThatWasChangedLongAgo"},
		{"a look-up in flight is not invalidated", replaced("c.changedAt", "never"), "TestAChangeInvalidatesALookupInFlight"},
		{"a late answer replaces a newer one", never, "TestALateAnswerDoesNotOverruleANewerOne"},
		{"an entry is found by its old rows", gone, "TestAChangedKeyIsAttachedAgain"},
		{"an evicted entry stays in its rows", replaced("c.rows[id] = others; len(others) ==", "len(others) <"), "TestAnIdleEntryIsEvictedWithItsRows"},
		{"a schedule is not looked up", without("!e.Key.Scheduled && "), "TestAScheduledKeyIsLookedUp"},
		{"a changed key is used although the wrong server answers", always, "TestTheWrongServerRevivesNoKey"},
		{"a changed key is used for the grace although the primary is up", gone, "TestAChangedKeyStopsWhileThePrimaryIsUp"},
	}},
	{"origin", []mutation{
		{"connections to an old primary are kept", replaced("run", `""`), "TestAnEarlierTimelineIsRefused"},
		{"an answer without keys is anybody's",
			instead("if found, by, err = s.query(ctx, hashes); len(found) == 0 {\nby.StartedAt = run\n}"), "TestAnEarlierTimelineIsRefused"},
		{"a standby's answer is the primary's", never, "TestAStandbyIsNotThePrimary"},
		{"the second answer is the primary's", never, "TestAnEarlierTimelineIsRefused"},
		{"any timeline is the primary's", never, "TestAnEarlierTimelineIsRefused"},
		{"each query makes connections", without("now-last > int64(PrimaryCooldown) && "), "TestTheWrongServerGetsFewConnections"},
		{"answers are taken before they can be judged", never, "TestNothingIsReadBeforeTheTimelineIsKnown"},
		{"the LSN in the page's own statement",
			inTurn(after("read, readBy, readErr := o.read(ctx, conn, q)"), replaced("o.read(ctx, conn, q)", "read, readBy, readErr")),
			"TestRowsOfAStandbyShowAllUpToTheirLSN"},
		{"a standby ahead of its primary is forgotten", replaced("l.lost", "false"), "TestLineage"},
		{"a standby that its primary has overtaken", without(" || position < l.floor"), "TestLineage"},
	}},
	{"limiter", []mutation{
		{"what is held does not count", replaced("max(0, b.Policy.Burst-b.HeldNow-b.HeldBefore) * lease.Token", "b.Policy.Units()"), "TestSimNeverOverAtSpending"},
		{"the slice before does not count", replaced("b.HeldNow,", "0,"), "TestSimNeverOverAtTheEdgesOfSlices"},
		{"a lease outlives what the bucket counts", replaced("- leaseSlack", "+ Slice"), "TestSimNeverOverAtTheEdgesOfSlices"},
		{"a lease ends when the bucket forgets it", without(" - leaseSlack"), "TestSimLeaseEndsBeforeItAges"},
		{"released twice", replaced("-rel1", "-rel1+used/8"), "TestSimTheBucketHoldsWhatALeaseMaySpend"},
		{"what a slow Redis grants is not held", without(" + c.Hold*c.Granted"), "TestSimWhatComesLateCountsAsHeld"},
		{"a slow Redis is waited for no longer", replaced("max(k.Budget, min(2*k.recent.Load(), MaxWait))", "k.Budget"), "TestSimLimitsHoldOnASlowRedis"},
		{"a clock that steps back refills", after("b.grow(b.RefilledAt-now, missing, nodes)"), "TestSimNeverOverAtSpending"},
		{"no deny cache", replaced("from + ", "0*from + 0*"), "TestSimFloodOnFiveAMinute"},
		{"denied for longer than there is no token", replaced("min", "2*min"), "TestSimSmallBurstsAreAsPerRequest"},
		{"denied only to the next token", gone, "TestSimRequestsHardlyEverAskRedis"},
		{"leases amid a burst", without(" / (3 * nodes)"), "TestSimAWholeBurstAtOnce"},
		{"a lease is all there is", replaced("(have + held) / max(minParts, 2*nodes+1)", "have + held"), "TestSimScenarios"},
		{"first come, first served", gone, "TestSimScenarios"},
		{"a drained bucket waits for long", replaced("drained && since", "drained && false && since"), "TestSimScenarios"},
		{"tokens of a burst that is small beside the fleet are leased", without(" && l.Policy.Burst >= 3*f.Nodes"), "TestSimScenarios"},
		{"others take nothing", replaced("max", "0 * max"), "TestSimWhatIsShownMayBeHad"},
		{"the share of missing nodes is not held back", replaced("c.Missing", "int64(0)"), "TestSimPartOfTheFleetIsCutOff"},
		{"a node refills at once", replaced("now = max(f.Contact, now-MissingAfter)", "_ = MissingAfter"), "TestSimPartOfTheFleetIsCutOff"},
		{"a part is not a part", replaced("max(1, f.Nodes)", "1"), "TestSimPartOfTheFleetIsCutOff"},
		{"a burst smaller than the fleet is divided", replaced("l.Policy.Burst < f.Nodes", "false"), "TestSimSmallBurstsWhileRedisIsAway"},
		{"debts are forgotten", replaced("l.debt(", "int64(0"), "TestSimHangUnderFlood"},
		{"a late answer pays no debt", replaced("max(0, min(tokens, l.debt())", "int64(0"), "TestSimALateFirstAnswerPaysForWhatWasDecidedWithoutIt"},
		{"what is held does not count, in the script", replaced("max(0, stored_burst - held_now - held_before)", "stored_burst"), "TestScriptEqualsModel"},
		{"a quota that is lowered forgets its debt", replaced("q.spent-q.taken", "0"), "TestAQuotaLoweredWithoutRedisKeepsItsDebt"},
		{"an unknown quota is a full one", replaced("(q.answered != never || q.shard.refuses())", "true"), "TestALateAnswerDoesNotFillAQuota"},
		{"every node thinks it is the only one",
			replaced("slices.Max(s.counts[:]", "min(1, slices.Max(s.counts[:])"), "TestNodesAreRememberedThroughAnEmptyRedis"},
		{"an empty Redis makes the fleet one node", replaced("[:", "[:1"), "TestNodesAreRememberedThroughAnEmptyRedis"},
		{"nodes that are gone are counted", gone, "TestHeartbeats"},
		{"a late heartbeat counts", without(" and now <= tonumber(ARGV[3])"), "TestALateHeartbeatIsVoid"},
		{"a call that nobody waits for gets tokens", gone, "TestSimAHangUnderAPacedClient"},
		{"a node does not know when a heartbeat is late", replaced("b.now - sent", "max(b.now, lease.Forever)"), "TestSimOneFaultAtATime"},
		{"the breaker never opens", gone, "TestBudgetAndBreakerToTheMillisecond"},
		{"contact is an answered heartbeat",
			inTurn(without("silence != nil || s.unreachable(s.link.Wait()) || s."), gone, after("if arrived && b.state == present {\ns.contact = sent\n}")),
			"TestOneNodeLosesOneShard"},
		{"a changed block stays", gone, "TestAChangedQuotaKeepsWhatWasSpent"},
		{"the part of a quota is of a full one", without("q.total - "), "TestAQuotaWithoutRedis"},
		{"a late call to a quota is executed", gone, "TestQuotaScriptEqualsModel"},
		{"a lost count stays lost", replaced("max(q.spent, q.taken)", "0"), "TestALostCountComesBack"},
		{"a lost answer loses a block", replaced(", n.taken = c.number, c.floor+more", " = c.number"), "TestAQuotaInStorms"},
		{"a quota is forgotten", replaced("left > 0", "left > 1<<62"), "TestAQuotaIsRemembered"},
		{"a request that a rate refuses costs the quota a token", gone, "TestQuotas"},
		{"a bucket in use is forgotten", gone, "TestABucketIsRememberedUntilItIsFull"},
		{"two buckets, two trips", instead("for _, a := range calls {\na.base().shard.enqueue(a)\ntime.Sleep(time.Millisecond)\n}"), "TestOnePipelineAMoment"},
		{"requests wait for ever", replaced("Duration(p.until-r.l.now()) * time.Microsecond", "Minute"), "TestLongestWait"},
		{"the script is sent once", gone, "TestScriptIsLoadedWhereItIsMissing"},
		{"a call is sent again", replaced("true", "false"), "TestACallIsCarriedOutOnceAtMost"},
		{"all masters are one shard", replaced("uint8(i)", "0"), "TestAHungShardCostsOthersNothing"},
		{"a node beats where it is asked for", replaced("s.l.shardOf(membersKey(i))", "_ = i"), "TestOneNodeLosesOneShard"},
		{"all go back at once", without(" && s.inFlight < maxPipelines"), "TestCloseGivesManyLeasesBack"},
		{"the fewest tokens go back first", replaced("b], held[a", "a], held[b"), "TestCloseGivesManyLeasesBack"},
		{"a heartbeat opens the way after Close", without("|| s.l.closed.Load() "), "TestCloseIsForGood"},
	}},
	{"edge", []mutation{
		{"a request counts in the period of another", without("&& !now.Before(p.begin) && now.Before(p.end) "), "TestTheNextPeriodBegins"},
		{"the body of HEAD is counted", never, "TestUsageCountsWhatIsAnswered"},
	}},
	{"cmd/listedge/e2e", []mutation{
		{"served although untrusted", replaced("int64(now) < f.trustedUntil.Load()", "f.trustedUntil.Load() > 0"), "TestFreshnessInShort"},
		{"no epoch for a crash, and no reset", never, "TestFreshnessOfLostCommits"},
		{"a node that starts knows of no newer timeline", without(", Followed: n.followed"), "TestAnOldPrimaryDoesNotReachNodesOnTheNewOne"},
		{"a standby ahead of its primary",
			inTurn(replaced("l.lost = l.lost || p.LSN < l.seen", "_ = l.lost"), never), "TestFreshnessOfAStandbyAheadOfItsPrimary"},
	}},
	{"origin/follower", []mutation{
		{"After is the heartbeat's own position", after("h.After = t.waiting[len(t.waiting)-1].Position"), "TestAHeartbeatProvesWhatWasVisible"},
		{"After noted when the heartbeat is sent", after("h.After = t.last"), "TestAHeartbeatComesAfterWhatWasThereBeforeItsSnapshot"},
		{"the flush position for the insert position", replaced("pg_current_wal_insert_lsn", "pg_current_wal_flush_lsn"), "TestAHeartbeatProvesWhatWasVisible"},
		{"changes are appended one by one", replaced(">= batchBytes", "> 0"), "TestFastCommitsAreAppendedTogether"},
		{"a second attempt counts", always, "TestAHeartbeatDoesNotComeAfterADoubtfulEntry"},
		{"a flood takes the milestones that confirm", never, "TestAFloodOfEntriesIsConfirmed"},
		{"an open transaction is judged by the new catalog",
			replaced("append(slices.Collect(maps.Values(d.streamed)), d.openTransaction", "slices.Collect(maps.Values(d.streamed)"),
			"TestAnOpenTransactionIsJudgedByBothCatalogs"},
		{"heartbeats say all of what waits", gone, "TestHeartbeatsStaySmall"},
		{"an inactive row is listed", without("|| active[0] == 0 "), "TestWhatRowsAChangeNames"},
		{"what is equal is not low", without("="), "TestWhatRowsAChangeNames"},
		{"a value that is not sent is NULL", gone, "TestRowsWithLargeValues"},
		{"a name that is not sent is empty", gone, "TestRowsWithLargeValues"},
		{"a filter's value that is not sent is NULL", replaced("(", `("no " + `), "TestRowsWithLargeValues"},
		{"a text of any length", never, "TestRowsWithLargeValues"},
		{"a row that was moved has the values of another", replaced("which == newRow", "false"), "TestRowsWithLargeValues"},
		{"what a transaction changed before is forgotten", gone, "TestRowsWithLargeValues"},
		{"a column of another type", without(" && of.DataType == c.Kind.OID()"), "TestWhatRowsAChangeNames"},
		{"the snapshot is not taken again after the message", replaced("for {", "for range 1 {"), "TestNoHeartbeatSeesAChangeOfTheSchemaThatIsNotPublished"},
		{"an id that an update may have changed", without("|| which == newRowOfSameKey && !t.id.key "), "TestAnUpdateNamesARowIfItsIDIsInTheKey"},
		{"rows that their id does not name", replaced("AmbiguousRows", "AmbiguousRows[:0]"), "TestRowsThatTheirIDDoesNotName"},
		{"the old row is not named", gone, "TestWhatRowsAChangeNames"},
		{"the first version is named",
			instead("if !again {\nrows[at] = *r\n}\nif len(t.rowAt) > maxRows || t.rowBytes > maxRowBytes {"), "TestWhatRowsAChangeNames"},
		{"a list of many rows names some", without("len(t.rowAt) > maxRows || "), "TestWhatRowsAChangeNames"},
		{"rows of any size", without("|| t.rowBytes > maxRowBytes "), "TestWhatRowsAChangeNames"},
		{"rows of a streamed transaction are named", without("|| t.rowsUnknown "), "TestAStreamedTransactionNamesNoRows"},
	}},
	{"cache", []mutation{
		{"no unsettled at join", replaced("h.Unsettled", "h.Unsettled[:0]"), "TestModel"},
		{"any heartbeat is a proof", without("&& after.Compare(reads[n].end) > 0 "), "TestModel"},
		{"a read that saw the entry at After proves", replaced(">", ">="), "TestModel"},
		{"a read that was cut proves", without("!cut && "), "TestModel"},
		{"gaps ignored", never, "TestModel"},
		{"merged at once", never, "TestModel"},
		{"rows outlive a reset", gone, "TestModel"},
		{"trusted for longer", replaced("int64", "2*int64"), "TestModel"},
		{"an open transaction hides all after it", never, "TestModel"},
		{"a machine that sleeps does not age", replaced("At", "Of"), "TestAfterASleep"},
		{"a read from before a sleep", replaced("Of", "At"), "TestAfterASleep"},
		{"entries that cannot be decoded ignored", never, "TestModel"},
		{"reads outlive the session", replaced(", s.reads = server, false, nil", " = server, false"), "TestModel"},
		{"a standby's rows are as young as their statement", replaced("min(readAt", "max(readAt"), "TestTheAgeOfAStandbysRowsIsThatOfTheProof"},
		{"the wrong server's page is shared", never, "TestAnAnswerOfAnotherPrimaryIsNotServed"},
	}},
	{"internal/changefeed", []mutation{
		{"a read before the first entry proves", without("&& s.begun "), "TestSubscription"},
		{"reads outlive a reset", replaced("reads, s.unsettled = nil,", "unsettled ="), "TestSubscription"},
		{"a restart is overlooked", never, "TestSubscription"},
		{"a read begins when it returned", replaced("began", "time.Now()"), "TestARecordedReadBeganBeforeItWasSent"},
		{"a session goes on with another reader", instead("_ = server"), "TestAFailedReadEndsTheSession"},
		{"a heartbeat of another server proves", never, "TestSubscription"},
		{"a subscriber reads on although another server has the log", without(" && !s.subscription.moved"), "TestASubscriberReadsWhereTheLogIsWritten"},
		{"a heartbeat comes after entries of another server", replaced("h.After.Compare(w.first) < 0", "false"), "TestHeartbeatsNameTheirServer"},
		{"an old epoch is written to", replaced("present and present ~= ARGV[1]", "false"), "TestLogs"},
		{"no read is cut", replaced("len(entries) >= readBatch", "false"), "TestLogs"},
	}},
	{"cmd/listedge/node", []mutation{
		{"a node answers before it has looked", without(", TimelineKnown: n.timelineKnown"), "TestANodeThatHasNotLookedYet"},
		{"a node is ready before it has looked",
			replaced(`errors.New("the timeline that the fleet follows is not known yet")`, "nil"), "TestANodeThatHasNotLookedYet"},
	}},
	{"cache/replica", []mutation{
		{"merged at once", never, "TestModel"},
		{"by xmax alone", replaced("&& !slices.ContainsFunc(s.snapshot.Running, v.Snapshot.Sees", "|| slices.Contains(s.snapshot.Running, 0"), "TestModel"},
		{"a lower xmax", without("s.snapshot.Xmax >= v.Snapshot.Xmax && "), "TestModel"},
		{"a standby may be ahead of the snapshot", replaced("lsn: r.state.end", "lsn: b.LSN"), "TestAnALTERTABLEThatAStandbyShowsFirst"},
		{"by the LSN alone", without(" && (s.unsettled == 0 || s.unsettled > v.Through)"), "TestModel"},
		{"an unsettled change at the LSN", replaced("> ", ">= "), "TestModel"},
		{"by the LSN before the statement",
			replaced("Through && (s.unsettled == 0 || s.unsettled > v.Through", "LSN && (s.unsettled == 0 || s.unsettled > v.LSN"), "TestModel"},
		{"a fill of the primary from before what is remembered", never, "TestModel"},
		{"without what the fill does not show", always, "TestModel"},
		{"what an unseen change left is that of the fill", replaced("completed(row, rows[row.ID])", "row"), "TestWhatChangesLeaveIsOfTheVersionBefore"},
		{"without what the primary's statement does not see", always, "TestModel"},
		{"a standby that lags", always, "TestModel"},
		{"a standby behind what is remembered", never, "TestModel"},
		{"a standby's LSN is behind the change", replaced("LSN", "LSN+1"), "TestModel"},
		{"a change that names no rows is overlooked", replaced("return nil, AnyRow", "continue"), "TestModel"},
		{"a change of the collection is overlooked", without(", {Collection: f.Table.Collection}"), "TestModel"},
		{"a forgotten change leaves no floor", gone, "TestModel"},
		{"the floor's LSN falls", replaced("max(h.floor.lsn, c.lsn)", "c.lsn"), "TestModel"},
		{"joining leaves no floor", gone, "TestModel"},
		{"a fill of another run", never, "TestModel"},
		{"a table whose rows are not named is kept", never, "TestModel"},
		{"a collection is kept", replaced("==", "!="), "TestModel"},
		{"a row is removed from one list only", after("break"), "TestModel"},
		{"a row is removed where it is put", replaced("at)", "behind(at))"), "TestModel"},
		{"the filter is forgotten", without(" || row.Flags&k.Filter != k.Filter"), "TestModel"},
		{"what is unknown is served", never, "TestModel"},
		{"a row of no known name is put", never, "TestModel"},
		{"a searched row is kept though its text changed", replaced("k.Search", `""`), "TestModel"},
		{"a row that begins to match is not put", replaced("text, k.Search", "k.Search, text"), "TestModel"},
		{"a row that no range shows is remembered", gone, "TestModel"},
		{"the version is not raised by a row that leaves", gone, "TestModel"},
		{"the version is not raised by a row that enters", gone, "TestModel"},
		{"the version is not raised by eviction", gone, "TestModel"},
		{"the version is not raised by a reset", replaced("1", "0"), "TestModel"},
		{"an evicted range is still covered", gone, "TestModel"},
		{"a gap is covered", gone, "TestModel"},
		{"a page goes on across a gap", without("|| l.ranges[i+1].lo != p.Last.hi "), "TestModel"},
		{"a page begins in a gap", without("|| l.ranges[i].lo > after && !isBehind(l.ranges[i].lo, after) "), "TestModel"},
		{"a page has the row at its position", replaced(">", ">="), "TestModel"},
		{"a page ends with its range", always, "TestModel"},
		{"a range has its lower bound only behind", without("="), "TestModel"},
		{"a range has its upper bound", replaced(">", ">="), "TestModel"},
		{"a bound is before its row", without(` + "\x00"`), "TestModel"},
		{"a fill that differs is merged", never, "TestWhatDoesNotAgree"},
		{"the hand gives no second chance", always, "TestWhatIsUsedIsKept"},
	}},
	{"origin/usage", []mutation{
		{"a batch is added again", without(" WHERE w.batch < excluded.batch"), "TestABatchCountsOnce"},
		{"a key was last used earlier", without(" WHERE l.last_used_at < excluded.last_used_at"), "TestABatchCountsOnce"},
		{"since when is forgotten", without(" AND batch > 0"), "TestOldRowsAreRemoved"},
		{"keys that exist are forgotten", replaced("k.id = l.key_id", "false"), "TestOldRowsAreRemoved"},
		{"a read-only role writes nothing", inTurn(gone, without(", AccessMode: pgx.ReadWrite")), "TestSettingsOfTheRoleHaveNoEffect"},
		{"a failed batch is dropped", always, "TestEachRequestIsCountedOnce"},
		{"a failed batch gets a new number", always, "TestEachRequestIsCountedOnce"},
		{"counts are added to what was sent", replaced("true", "false"), "TestEachRequestIsCountedOnce"},
		{"one row keeps the others from being written", replaced("least(k.bytes, 9223372036854775807 - excluded.bytes)", "k.bytes"), "TestARowAtItsBoundStaysThere"},
		{"memory is not bounded", replaced("len(r.queue) >= maxQueued", "false"), "TestMemoryIsBounded"},
		{"all that waits is written at once", replaced("4", "99"), "TestTheLoadOfTheDatabaseIsBounded"},
		{"hours end late", replaced("r.looked.", "now."), "TestARecorderWrites"},
		{"nothing is written at the end", gone, "TestARecorderWrites"},
	}},
}
