package edge

import (
	"listedge/cache/freshness"
	"listedge/internal/changefeed"
	"listedge/origin"
)

// The orders and filters of queries, as the log of changes and cache/freshness name them.
var (
	extentOrders = [...]freshness.Order{origin.ByCreatedAt: freshness.ByCreatedAt, origin.ByName: freshness.ByName}
	stockFlags   = [...]changefeed.RowFlags{origin.AnyStock: 0, origin.Tracked: changefeed.RowTracked, origin.Low: changefeed.RowTracked | changefeed.RowLow}
	typeFlags    = [...]changefeed.RowFlags{origin.AnyType: 0, origin.Goods: changefeed.RowGoods, origin.Services: changefeed.RowService,
		origin.Customers: changefeed.RowCustomer, origin.Suppliers: changefeed.RowSupplier}
)

// extentOf returns which rows of the list the page shows; nil = not known. It depends on
// each field of the query that selects or orders rows: see TestEachFieldOfAQueryIsHandled.
func extentOf(q *origin.Query, shown *origin.Shown) *freshness.Extent {
	if shown == nil {
		return nil
	}
	e := &freshness.Extent{
		Order: extentOrders[q.Sort], Filter: stockFlags[q.Stock] | typeFlags[q.Type], Searched: q.Search != "",
		After: boundOf(&q.After, shown.Names), End: boundOf(&shown.End, shown.Names), Tags: make([]uint32, len(shown.IDs)),
	}
	if shown.Names != nil {
		e.NameOrder = shown.Names.Digest
	}
	for i, id := range shown.IDs {
		e.Tags[i] = freshness.Tag(id)
	}
	return e
}

// boundOf converts a position of the origin; one that is not set is an end of the list.
// names is nil if the order of names is not known.
func boundOf(p *origin.Position, names *origin.NameOrder) freshness.Bound {
	if !p.Set {
		return freshness.Bound{Kind: freshness.Open}
	}
	b := freshness.Bound{Kind: freshness.At, CreatedAt: p.CreatedAt, ID: p.ID}
	if names != nil {
		b.NameKey, _ = names.Key(p.Name)
	}
	return b
}
