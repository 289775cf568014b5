package edge

import (
	"context"
	"errors"
	"fmt"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/metrics"
	"listedge/origin"
)

// lookUp finds the page, in memory if it can.
func (s *Server) lookUp(x *exchange) failure {
	x.key = appendPageKey(x.key[:0], &x.query, x.scratch[:0])
	control := parseCacheControl(x.asked.control)
	hit := x.found
	if !control.noCache && !hit {
		x.page, hit = s.cache.Hit(&x.client.spot, x.key, x.now)
		if s.timed {
			x.passed(stepMemory)
		}
	}
	if !hit {
		var err error
		x.page, err = s.forward(x, control)
		x.passed(stepForward)
		if err != nil {
			s.returnToken(x)
			return failure{problem: lookUpProblem(err), retry: retrySoon, cause: err}
		}
	}
	s.countLookUp(x)
	return failure{}
}

// countLookUp notes where the page came from.
func (s *Server) countLookUp(x *exchange) {
	var tier metrics.Tier
	switch {
	case x.page.Err != nil:
		tier, x.outcome = metrics.TierStale, metrics.OutcomeStale
	case x.page.Source == cache.Memory:
		tier, x.outcome = metrics.TierMemory, metrics.OutcomeMemory
	case x.page.Source == cache.Redis:
		tier, x.outcome = metrics.TierRedis, metrics.OutcomeRedis
	default:
		tier, x.outcome = metrics.TierOrigin, metrics.OutcomeOrigin
	}
	x.conn.counts.LookedUp(tier, x.page.Collapsed)
}

// forward is the way of a page that is not in memory.
func (s *Server) forward(x *exchange, control cacheControl) (cache.Result, error) {
	if control.onlyIfCached {
		if control.noCache { // no page is both
			return cache.Result{Local: true}, cache.ErrNotStored
		}
		return s.cache.Stored(x.key, pairOf(&x.query))
	}
	pair, fill := s.fillOf(x, x.query)
	if control.noCache {
		return s.cache.Bypass(x.key, pair, fill)
	}
	return s.cache.Forward(x.key, pair, fill)
}

// fillOf is how the page of an exchange's query, or of one that follows from
// it, is read, and what changes it. The query is a copy: a fill may outlive the
// request that began it.
func (s *Server) fillOf(x *exchange, q origin.Query) (changefeed.List, cache.Fill) {
	fill := cache.Fill{Compress: acceptsGzip(x.asked.encoding), Primary: func(ctx context.Context, run string) (cache.FillResult, error) {
		page, err := s.origin.Fetch(ctx, q, run)
		if errors.Is(err, origin.ErrWrongServer) {
			err = fmt.Errorf("%w: %w", cache.ErrWrongServer, err)
		}
		return filled(page, err)
	}}
	if s.origin.HasStandbys() {
		fill.Standby = func(ctx context.Context, n cache.Needed) (cache.FillResult, error) {
			return filled(s.origin.FetchFromStandby(ctx, q, origin.Needed(n)))
		}
	}
	return pairOf(&q), fill
}

func pairOf(q *origin.Query) changefeed.List {
	return changefeed.List{Workspace: q.Workspace, Collection: collections[q.Collection]}
}

// readNext has the next page of a walk read in the background: of a client that
// came by a cursor, while the database has nothing better to do. It says whether
// that costs a query.
func (s *Server) readNext(x *exchange) (begun bool) {
	if !x.query.After.Set || x.page.Err != nil || !x.page.Entry.ClaimNextPrefetch() || s.origin.Busy() {
		return false
	}
	q := x.query
	var err error
	if q.After, err = q.ParseCursor([]byte(x.page.Entry.Next)); err != nil {
		return false // by a version that writes other cursors
	}
	pair, fill := s.fillOf(x, q)
	return s.cache.PrefetchNext(appendPageKey(nil, &q, nil), pair, fill)
}

func filled(p origin.Page, err error) (cache.FillResult, error) {
	return cache.FillResult{Body: p.Body, Next: p.NextCursor, Snapshot: p.Snapshot, Run: p.Incarnation, Server: p.Server, LSN: p.LSN,
		Query: cache.Span{Began: p.Began, Took: p.Took}}, err
}

// collections names the origin's collections in the log of changes.
var collections = [...]changefeed.Collection{origin.Items: changefeed.Items, origin.Contacts: changefeed.Contacts}

// appendPageKey appends the cache key of a query's page: everything the page
// depends on, and nothing else. scratch is for its parts.
func appendPageKey(dst []byte, q *origin.Query, scratch []byte) []byte {
	scope := q.AppendScope(scratch)
	limit := append(scope[len(scope):], byte(q.Limit))
	return cache.AppendKey(dst, q.Workspace, scope, limit, q.AppendPosition(limit[len(limit):]))
}
