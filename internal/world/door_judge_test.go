package world_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"listedge/origin/apikey"
	"listedge/origin/usage"
)

// What is judged of answers as clients get them.
var (
	formOfAnswers = promise{"Answers", "Each answer names its request: by the `X-Request-Id` that was sent"}
	sameTag       = promise{"Answers", "The same `ETag` means the same rows and the same next page"}
	whoGetsPages  = promise{"Answers", "A key that is malformed or unknown gets 401."}
	noneLost      = promise{"Answers", "A node that drains answers all that it has taken"}
	saysWhere     = promise{"Freshness", "`Cache-Status` says where it came from"}
	neverStale    = promise{"Freshness", "If none comes in a quarter of the bound, or memory does not have the page, it is read from the primary"}
	ownTenant     = promise{"Keys", "A key sees the rows of its workspace's tenant, and no other."}
	notRefused    = promise{"Keys", "A valid key is never refused because of the failures of others"}
	burstAndRate  = promise{"Limits", "Over all nodes and any span of t seconds, at most `burst + rate × t` requests are admitted"}
	costsNone     = promise{"Limits", "A refused request costs no token."}
	countedOnce   = promise{"Usage", "Each request with a valid key is counted once"}
	ofDoors       = []promise{formOfAnswers, sameTag, whoGetsPages, noneLost, saysWhere, neverStale, ownTenant, notRefused, burstAndRate, costsNone,
		countedOnce}
)

// judgeVisit judges an answer, or that there is none.
func (w *run) judgeVisit(v *visit) {
	defer func() { w.judge(v.ask) }()
	d, c := v.node.door, v.client
	if v.failed != nil {
		v.err = v.failed
		switch {
		case !v.taken:
			v.spend(nothing)
			return
		case !v.hangsUp && !d.killed:
			w.breaks(noneLost, "%s to %s has no answer: %v", v.id, v.node, v.err)
		}
		d.sumOf(&c.key).maybe++
		return
	}
	status, h := v.answer.StatusCode, v.answer.Header
	w.counts[fmt.Sprint("answers ", status)]++
	if h.Get("X-Request-Id") != v.id {
		w.breaks(formOfAnswers, "%s has the id %q", v.id, h.Get("X-Request-Id"))
	}
	if !d.drains.IsZero() && v.ended.After(d.drains) && !v.answer.Close {
		w.breaks(noneLost, "%s is answered by %s, which drains, and is not closed", v.id, v.node)
	}
	w.judgeStatus(v)
	w.judgeLimit(v)
	if !c.unknown && (status != 503 || h.Get("RateLimit") != "") { // else the key could not be looked up
		d.sumOf(&c.key).add(status, len(v.body))
	}
	if status >= 400 {
		v.err = fmt.Errorf("%d %s", status, v.body)
		w.judgeProblem(v)
		return
	}
	w.judgeShown(v)
}

// judgeStatus judges whether the client may get an answer of this kind.
func (w *run) judgeStatus(v *visit) {
	status, c := v.answer.StatusCode, v.client
	allowed := []int{200, 429, 503}
	if v.tag != "" {
		allowed = append(allowed, 304)
	}
	if v.kind == onlyIfCached {
		allowed = append(allowed, 504)
	}
	switch {
	case c.status != 0 && status != c.status && status != 503:
		w.breaks(whoGetsPages, "client %d gets %d for %s", c.number, status, v.id)
	case c.status == 0 && (status == 401 || status == 403):
		w.breaks(notRefused, "client %d gets %d for %s: %s", c.number, status, v.id, v.body)
	case c.status == 0 && !slices.Contains(allowed, status):
		w.breaks(formOfAnswers, "client %d gets %d for %s: %s", c.number, status, v.id, v.body)
	}
}

// judgeProblem judges an answer without a page.
func (w *run) judgeProblem(v *visit) {
	status, h := v.answer.StatusCode, v.answer.Header
	retry, _ := strconv.Atoi(h.Get("Retry-After"))
	if (status == 429 || status == 503) != (retry > 0) {
		w.breaks(formOfAnswers, "%d with Retry-After %q for %s", status, h.Get("Retry-After"), v.id)
	}
	var body struct {
		Error     struct{ Code, Message string }
		RequestID string
	}
	err := json.Unmarshal(v.body, &body)
	if !v.head && (err != nil || body.Error.Code == "" || body.Error.Message == "" || body.RequestID != v.id || h.Get("Content-Type") != "application/json") {
		w.breaks(formOfAnswers, "%d for %s with %s", status, v.id, v.body)
	}
}

// judgeShown reads a page, or which one the client has. What it shows is judged like pages of nodes without doors.
func (w *run) judgeShown(v *visit) {
	h := v.answer.Header
	tag, status, r := h.Get("ETag"), h.Get("Cache-Status"), &v.result
	where, millis, _ := strings.Cut(status, "; proof-ms=")
	age, err := strconv.Atoi(millis)
	r.age, r.rounded, r.stale = time.Duration(age+1)*time.Millisecond, time.Millisecond, where == "listedge; fwd=stale; detail=stale-if-error"
	switch {
	case strings.HasPrefix(where, "listedge; hit"):
		r.from = where[strings.LastIndex(where, "=")+1:]
	case strings.HasPrefix(where, "listedge; fwd="):
		r.from = "origin"
	}
	if err != nil || r.from == "" || h.Get("Age") != fmt.Sprint(age/1000) {
		w.breaks(saysWhere, "%s has Cache-Status %q and Age %q", v.id, status, h.Get("Age"))
	}
	if r.stale && v.kind == noCache {
		w.breaks(neverStale, "%s with no-cache is stale", v.id)
	}
	known := w.tags[tag]
	if v.answer.StatusCode == 304 && (tag != v.tag || len(v.body) > 0) {
		w.breaks(sameTag, "%s has %s, and is told 304 of %s, with %d bytes", v.id, v.tag, tag, len(v.body))
	}
	switch bodiless := v.head || v.answer.StatusCode == 304; {
	case bodiless && known == nil:
		v.err = errNoBody
		return
	case bodiless:
		r.rows, r.next = known.rows, known.next
	default:
		body, id := v.read()
		err = r.read(body)
		if err != nil || id != v.id {
			w.breaks(formOfAnswers, "%s with %s: %v", v.id, body, err)
		}
		if known != nil && (known.next != r.next || !slices.Equal(known.rows, r.rows)) {
			w.breaks(sameTag, "%s: %s was %q, and is %q", v.id, tag, known.rows, r.rows)
		}
		w.tags[tag] = r
	}
	v.client.q, v.client.tag = v.q, tag
	other := v.q
	other.Tenant = w.Tenants[0]
	if other.Tenant == v.q.Tenant {
		other.Tenant = w.Tenants[len(w.Tenants)-1]
	}
	from := v.ended.Add(-r.age)
	if len(r.rows) > 0 && !w.Was(&v.q, r.rows, r.next != "", from, w.Standby) && w.Was(&other, r.rows, r.next != "", from, w.Standby) {
		w.breaks(ownTenant, "%s of client %d shows rows of another tenant", v.id, v.client.number)
	}
}

var errNoBody = errors.New("an answer without a body, of a page that is not known")

// read returns the body of a page as JSON, and the request that it names.
func (v *visit) read() (body []byte, id string) {
	body = v.body
	if v.answer.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err == nil {
			body, err = io.ReadAll(z)
		}
		if err != nil {
			return v.body, ""
		}
	}
	var named struct{ RequestID string }
	_ = json.Unmarshal(body, &named)
	return body, named.RequestID
}

// tally is what a node must have counted of a key: what it has answered, and maybe requests whose answers nobody got.
type tally struct {
	usage.Counts
	maybe uint64
}

func (c *tally) add(status, size int) {
	n := usage.Counts{Requests: 1, Bytes: uint64(size)}
	switch status {
	case 429:
		n.Refused = 1
	case 304:
		n.NotModified = 1
	}
	c.Counts.Add(n)
}

func (d *door) sumOf(k *apikey.Key) *tally {
	if d.tallies[k.ID] == nil {
		d.tallies[k.ID] = &tally{}
	}
	return d.tallies[k.ID]
}

// judgeStop judges a node that has stopped.
func (w *run) judgeStop(d *door) {
	if d.lost != nil {
		w.breaks(noneLost, "%s: %v", d.node, d.lost)
	}
	if d.unwritten != nil {
		return // Postgres was not there
	}
	w.counts["usage written"]++
	for id, c := range d.tallies {
		is := d.written[id]
		is.Queries, is.Bypassed = 0, 0
		if is.Requests < c.Requests || is.Requests > c.Requests+c.maybe || c.maybe == 0 && is != c.Counts {
			w.breaks(countedOnce, "%s has written %+v of key %s, and answered %+v, and maybe %d more", d.node, is, id, c.Counts, c.maybe)
		}
	}
}

// bucket is what clients know of a limit on one node, which has no Redis here.
type bucket struct {
	limit apikey.Limit
	spent []*spending // the latest, in the order of their requests
}

// spending is a token that a request may have taken, by the clock of the node.
type spending struct {
	of       *bucket
	from, to time.Duration // when the request was sent and answered
	is       spent
}

type spent uint8

const (
	unknown spent = iota // there is no answer, or not yet
	token
	nothing // the request was refused, or did not arrive
)

// begin notes that a request may take tokens of the key.
func (d *door) begin(k *apikey.Key) (all []*spending) {
	for name, l := range map[string]apikey.Limit{k.ID.String(): k.Limit, k.Workspace.String(): k.WorkspaceLimit} {
		if !l.Set || l.Burst == large {
			continue // it is never reached
		}
		if d.buckets[name] == nil {
			d.buckets[name] = &bucket{limit: l}
		}
		s := &spending{of: d.buckets[name], from: d.node.machine.Clock.Now()}
		s.of.spent = append(s.of.spent[max(0, len(s.of.spent)-500):], s)
		all = append(all, s)
	}
	return all
}

func (v *visit) spend(what spent) {
	for _, s := range v.spending {
		s.is, s.to = what, v.nodeTime
	}
}

// judgeLimit judges whether the request was to be admitted.
func (w *run) judgeLimit(v *visit) {
	status, h := v.answer.StatusCode, v.answer.Header
	limited := h.Get("RateLimit") != ""
	switch {
	case status == 429:
		v.spend(nothing)
		if slices.ContainsFunc(v.spending, func(s *spending) bool { return s.of.level(s) < 1 }) {
			return
		}
		w.breaks(costsNone, "%s of client %d is refused: %s; %s", v.id, v.client.number, h.Get("RateLimit"), v.spending)
	case !limited:
		v.spend(nothing)
		if v.client.status == 0 && status != 503 {
			w.breaks(formOfAnswers, "%d for %s without RateLimit", status, v.id)
		}
	case status == 304 && strings.HasPrefix(h.Get("Cache-Status"), "listedge; hit; detail=memory"):
		v.spend(nothing)
	default:
		v.spend(token)
		for _, s := range v.spending {
			if n, of := s.of.most(s); n > of {
				w.breaks(burstAndRate, "%s of client %d is the last of %v tokens, of %v: %+v", v.id, v.client.number, n, of, s.of.limit)
			}
		}
	}
}

// level is the fewest tokens that the bucket may have had when the request was decided, if each that may have taken one did so as late
// as it may have.
func (b *bucket) level(at *spending) float64 {
	least := float64(b.limit.Burst)
	for _, since := range b.spent {
		began := min(since.to, at.from)
		if since.is == unknown || since == at {
			began = at.from
		}
		n := 0
		for _, s := range b.spent {
			if s.is != nothing && s.from <= at.to && (s.is == unknown || s.to >= began) {
				n++
			}
		}
		least = min(least, float64(b.limit.Burst)+b.limit.Rate*(at.from-began).Seconds()-float64(n))
	}
	return least
}

// String shows all of the bucket.
func (s *spending) String() string {
	var all []string
	for _, o := range s.of.spent {
		all = append(all, fmt.Sprintf("%s to %s: %d", o.from-s.from, o.to-s.from, o.is))
	}
	return fmt.Sprintf("%+v: %q", s.of.limit, all)
}

// most returns how many tokens were taken for certain in a span that ends with the request, and how many may be, of the span with
// the most above that.
func (b *bucket) most(last *spending) (n, of float64) {
	for _, first := range b.spent {
		taken, may := 0., float64(b.limit.Burst)+b.limit.Rate*(last.to-first.from).Seconds()+1e-6
		for _, s := range b.spent {
			if s.is == token && s.from >= first.from && s.to <= last.to {
				taken++
			}
		}
		if first.from <= last.to && taken-may > n-of {
			n, of = taken, may
		}
	}
	return n, of
}
