package edge

import (
	"context"
	"errors"
	"fmt"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/origin"
	"listedge/origin/usage"
)

// forward finds a page that is not in memory.
func (s *Server) forward(x *exchange) (cache.Result, error) {
	switch control := parseCacheControl(x.headers.control); {
	case control.onlyIfCached:
		return s.Cache.Stored(viewOf(x.query))
	case control.noCache:
		return s.Cache.Bypass(x.key, s.fillOf(x))
	}
	return s.Cache.Forward(x.key, s.fillOf(x))
}

// fillOf returns how the query's page is read.
func (s *Server) fillOf(x *exchange) cache.Fill {
	view, by := viewOf(x.query), x.client.usage
	fill := cache.Fill{View: view, Primary: func(ctx context.Context, run string) (cache.FillResult, error) {
		rows, err := s.Origin.Fetch(ctx, view.query, run)
		if errors.Is(err, origin.ErrWrongServer) {
			err = fmt.Errorf("%w: %w", cache.ErrWrongServer, err)
		}
		return fillResult(by, rows, err)
	}}
	if s.Origin.HasStandbys() {
		fill.Standby = func(ctx context.Context, p changefeed.Proof) (cache.FillResult, error) {
			rows, err := s.Origin.FetchFromStandby(ctx, view.query, p)
			return fillResult(by, rows, err)
		}
	}
	return fill
}

// fillResult is the answer of one query, which counts as the key's usage.
func fillResult(by *usage.Counter, r origin.Rows, err error) (cache.FillResult, error) {
	if !r.Began.IsZero() {
		by.Queried()
	}
	return cache.FillResult{Rows: r.Rows, End: r.End, At: r.At, Query: cache.Span{Began: r.Began, Took: r.Took}}, err
}

// view is a query as the cache names its page, with memory of its own, because a fill may
// outlive the request that began it. It depends on each field of the query: see
// TestEachFieldOfAQueryIsHandled.
type view struct {
	query origin.Query
	key   []byte
	list  replica.Key
}

func viewOf(q origin.Query) *view {
	v := &view{query: q.Clone(), key: appendPageKey(nil, &q, nil)}
	v.list = replica.Key{Table: changefeed.List{Workspace: q.Workspace, Collection: q.Collection}, Order: q.Sort, Filter: q.Filter,
		Search: lists.Fold(v.query.Search)}
	return v
}

// Key implements cache.View.
func (v *view) Key() []byte { return v.key }

// List implements cache.View.
func (v *view) List() replica.Key { return v.list }

// After implements cache.View.
func (v *view) After() lists.Position { return v.query.After }

// Limit implements cache.View.
func (v *view) Limit() int { return v.query.Limit }

// Behind implements cache.View.
func (v *view) Behind(row *lists.Row) cache.View { return viewOf(v.query.Behind(row)) }

// Frame implements cache.View.
func (v *view) Frame(last *lists.Row, more bool) (head, end, next string) {
	return v.query.Frame(last, more)
}
