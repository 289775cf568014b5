package edge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Sentences says of a request what became of it and why, why its page was as
// old as it was, and where its time went.
func (r *Record) Sentences() []string {
	who := "no key that is known"
	if r.KeyID != "" {
		who = "key " + r.KeyID + " of workspace " + r.WorkspaceID
	}
	said := []string{fmt.Sprintf("At %s a request of %s for %s was answered %d after %s.", r.Time.Format("2006-01-02T15:04:05.000Z"), who,
		r.Route, r.Status, span(r.Took.Total))}
	if r.Message != "" {
		said = append(said, "The client was told: "+r.Message)
	}
	if r.Message != "" && r.Cause != "" {
		said = append(said, "The cause: "+oneLine(r.Cause)+".")
	}
	said = append(said, r.whyLimited()...)
	said = append(said, r.whyOld()...)
	return append(said, r.whySlow())
}

var decidedBy = map[string]string{
	"unlimited":      "there is no bucket",
	"blocked":        "a rate of 0 admits nothing",
	"memory":         "decided by this node, which runs without Redis",
	"redis":          "decided by Redis, which the request waited for",
	"lease":          "decided at once, from what this node has leased of the bucket in Redis",
	"local-fallback": "decided by this node alone, because Redis was away or late",
}

func (r *Record) whyLimited() []string {
	l := r.Limit
	if l == nil {
		return nil
	}
	name, bucket := "key", &l.Key
	if l.RefusedBy == "workspace" && l.Workspace != nil {
		name, bucket = "workspace", l.Workspace
	}
	stood := fmt.Sprintf("The %s's bucket (rate %v/s, burst %d)", name, bucket.Rate, bucket.Burst)
	if l.Allowed {
		said := []string{fmt.Sprintf("%s had %d left; %s.", stood, bucket.Remaining, decidedBy[l.Source])}
		if w := l.Workspace; w != nil {
			said = append(said, fmt.Sprintf("The workspace's bucket (rate %v/s, burst %d) had %d left.", w.Rate, w.Burst, w.Remaining))
		}
		return said
	}
	return []string{fmt.Sprintf("%s had no token for it, and may have one after %s; %s.", stood, span(l.RetryAfter), decidedBy[l.Source])}
}

func (r *Record) whyOld() []string {
	p := r.Page
	if p == nil {
		return nil
	}
	age := span(p.ProofAge)
	switch {
	case strings.Contains(p.CacheStatus, "stale-if-error"):
		return []string{fmt.Sprintf("The page is old: it was last known to equal the database %s before, and stood in for one that could not be read: %s.", age, oneLine(r.Cause))}
	case strings.Contains(p.CacheStatus, "detail=ttl"):
		return []string{fmt.Sprintf("The page, from %s, was read %s before: changes are not followed, so pages count as fresh for --cache-ttl.", p.Tier, age)}
	case p.Tier != "origin":
		return []string{fmt.Sprintf("The page, from %s, was fresh: it was known to equal the database %s before.", p.Tier, age)}
	case strings.Contains(p.CacheStatus, "fwd=bypass"):
		return []string{"The page was read from the database because the client asked for that (Cache-Control: no-cache)."}
	case strings.Contains(p.CacheStatus, "fwd=stale"):
		return []string{"The page was read from the database: the one in memory or Redis had been changed, or could not be proven fresh."}
	}
	return []string{"The page was read from the database: neither memory nor Redis had it."}
}

// whySlow tells the parts of the request's time, the longest first, down to a
// twentieth of it. Each moment is in one part only.
func (r *Record) whySlow() string {
	t := r.Took
	type part struct {
		name string
		took float64
	}
	parts := []part{{"to look up the key", t.Key}, {"for the limit to be decided", t.Limit}, {"to look in memory", t.Memory}}
	if t.Shared {
		parts = append(parts, part{fmt.Sprintf("to wait for a page that another request was fetching (its query: %s)", span(t.Query)), t.Wait})
	} else {
		parts = append(parts, part{"for Redis", t.Redis}, part{"for the query", t.Query}, part{"to wait for a turn and a connection to the database", t.Fill - t.Query},
			part{"to wait for the page, beside", t.Wait - t.Redis - t.Fill})
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.took, a.took) })
	var told []string
	for _, p := range parts {
		if p.took > 0 && p.took >= t.Total/20 {
			told = append(told, span(p.took)+" "+p.name)
		}
	}
	if len(told) == 0 {
		return "It waited for nothing."
	}
	return fmt.Sprintf("Of its %s it took %s.", span(t.Total), strings.Join(told, ", "))
}

// span renders seconds, to three digits or so.
func span(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
