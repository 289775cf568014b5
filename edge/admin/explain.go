package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"listedge/edge"
)

// Sentences explains a recent request: its status with the reason, the age of its page
// with the reason, and how its time was spent.
func Sentences(r *edge.Record) []string {
	client := "without a valid key"
	if r.KeyID != uuid.Nil {
		client = "of key " + r.KeyID.String() + " of workspace " + r.WorkspaceID.String()
	}
	all := []string{fmt.Sprintf("At %s a request %s for %s got status %d after %s.", r.Time.Format("2006-01-02T15:04:05.000Z"), client,
		r.Route, r.Status, span(r.Took.Total))}
	if r.Message != "" {
		all = append(all, "The error message was: "+r.Message)
		if r.Cause != "" {
			all = append(all, "The cause was: "+oneLine(r.Cause)+".")
		}
	}
	all = append(all, explainLimit(&r.Limit)...)
	all = append(all, explainPage(r)...)
	return append(all, explainTime(&r.Took))
}

// limitSources describe limiter.Source by its name.
var limitSources = map[string]string{
	"unlimited":      "there is no bucket",
	"blocked":        "a rate of 0 allows no request",
	"memory":         "decided by this node, which runs without Redis",
	"redis":          "decided by Redis, and the request waited for it",
	"lease":          "decided at once, from the tokens that this node has leased from Redis",
	"local-fallback": "decided by this node alone, because Redis was down or late",
}

func explainLimit(l *edge.LimitRecord) []string {
	if l.Source == "" {
		return nil
	}
	name, bucket, q := "key", &l.Key, &l.Quota
	if l.RefusedBy == "workspace" {
		name, bucket = "workspace", &l.Workspace
	}
	described := fmt.Sprintf("The %s's bucket (rate %v/s, burst %d)", name, bucket.Rate, bucket.Burst)
	quota := fmt.Sprintf("The workspace's quota (%d requests a %s)", q.Requests, q.Period)
	switch {
	case !l.Allowed && l.RefusedBy == "quota" && l.Source == "local-fallback":
		return []string{fmt.Sprintf("This node had nothing left of its part of the workspace's quota, with a retry after %s; %s.", span(l.RetryAfter), limitSources[l.Source])}
	case !l.Allowed && l.RefusedBy == "quota":
		return []string{fmt.Sprintf("%s was used up, and the next period began %s later; %s.", quota, span(l.RetryAfter), limitSources[l.Source])}
	case !l.Allowed:
		return []string{fmt.Sprintf("%s was empty, with a retry after %s; %s.", described, span(l.RetryAfter), limitSources[l.Source])}
	}
	all := []string{fmt.Sprintf("%s had %d tokens left; %s.", described, bucket.Remaining, limitSources[l.Source])}
	if w := l.Workspace; w.Burst > 0 {
		all = append(all, fmt.Sprintf("The workspace's bucket (rate %v/s, burst %d) had %d tokens left.", w.Rate, w.Burst, w.Remaining))
	}
	if q.Requests > 0 {
		all = append(all, fmt.Sprintf("%s had %d left.", quota, q.Remaining))
	}
	return all
}

func explainPage(r *edge.Record) []string {
	p := &r.Page
	if p.Tier == "" {
		return nil
	}
	age, invalidated := span(p.ProofAge), explainInvalidation(&p.Invalidation)
	switch {
	case strings.Contains(p.CacheStatus, "stale-if-error"):
		all := []string{fmt.Sprintf("The page was stale: it last equalled the database %s before. It was served because the database could not be read: %s.", age, oneLine(r.Cause))}
		if invalidated != "" {
			all = append(all, "It was "+invalidated+".")
		}
		return all
	case strings.Contains(p.CacheStatus, "detail=ttl"):
		return []string{fmt.Sprintf("The page, from %s, was read %s before: this node does not follow changes, so pages count as fresh for --cache-ttl.", p.Tier, age)}
	case p.Tier != "origin":
		return []string{fmt.Sprintf("The page, from %s, was fresh: it equalled the database %s before.", p.Tier, age)}
	case strings.Contains(p.CacheStatus, "fwd=bypass"):
		return []string{"The page was read from the database because the client sent Cache-Control: no-cache."}
	case strings.Contains(p.CacheStatus, "fwd=stale") && invalidated != "":
		return []string{"The page was read from the database: the one in memory or Redis was " + invalidated + "."}
	case strings.Contains(p.CacheStatus, "fwd=stale"):
		return []string{"The page was read from the database: the one in memory or Redis was invalidated or not known to be fresh."}
	}
	return []string{"The page was read from the database: neither memory nor Redis had it."}
}

// concerns describe freshness.Concern by its name. They complete the sentence "the page
// was invalidated by transaction N, …"; the last two complete "the page was …".
var concerns = map[string]string{
	"shown":     "which changed a row on the page, or the first row after it",
	"entered":   "which changed a row that now belongs on the page",
	"any-row":   "whose changed rows are not known",
	"no-extent": "and it is not known which rows the page shows",
	"name":      "which changed a row whose place in the list by name is not known",
	"search":    "which changed a row that now belongs on the page if it matches the search",
	"many":      "not compared with the rows that have changed since, because they are too many",
	"forgotten": "older than the changes of its list that this node remembers",
}

// explainInvalidation says which change made the page stale; empty = it is not known.
func explainInvalidation(i *edge.InvalidationRecord) string {
	if i.Transaction == 0 {
		return concerns[i.Concern]
	}
	at := ""
	if i.CommittedAt != 0 {
		at = " at " + time.UnixMicro(i.CommittedAt).UTC().Format("15:04:05.000Z")
	}
	return fmt.Sprintf("invalidated by transaction %d%s (position %d-%d), %s", i.Transaction, at, i.Term, i.N, concerns[i.Concern])
}

// explainTime lists the parts of the request's time that took a twentieth of the total
// or more, the longest first. Parts do not overlap.
func explainTime(t *edge.TimesRecord) string {
	type part struct {
		what string
		took float64
	}
	parts := []part{{"to look up the key", t.Key}, {"to decide the limit", t.Limit}, {"to look in memory", t.Memory}}
	if t.Shared {
		parts = append(parts, part{fmt.Sprintf("to wait for a fill that another request had begun (its query: %s)", span(t.Query)), t.Wait})
	} else {
		parts = append(parts, part{"for Redis", t.Redis}, part{"for the query", t.Query}, part{"to wait in the queue and for a connection to the database", t.Fill - t.Query},
			part{"for the rest of the fill", t.Wait - t.Redis - t.Fill})
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.took, a.took) })
	var listed []string
	for _, p := range parts {
		if p.took > 0 && p.took >= t.Total/20 {
			listed = append(listed, span(p.took)+" "+p.what)
		}
	}
	if len(listed) == 0 {
		return "It waited for nothing."
	}
	return fmt.Sprintf("Of its %s it took %s.", span(t.Total), strings.Join(listed, ", "))
}

// span renders seconds, to about three digits.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
