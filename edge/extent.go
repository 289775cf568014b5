package edge

import (
	"listedge/cache/freshness"
	"listedge/internal/changefeed"
	"listedge/origin"
)

// What a page's query and rows are to the log of changes.
var (
	extentOrders = [...]freshness.Order{origin.ByCreatedAt: freshness.ByCreatedAt, origin.ByName: freshness.ByName}
	stockFlags   = [...]changefeed.RowFlags{origin.AnyStock: 0, origin.Tracked: changefeed.RowTracked, origin.Low: changefeed.RowTracked | changefeed.RowLow}
	typeFlags    = [...]changefeed.RowFlags{origin.AnyType: 0, origin.Goods: changefeed.RowGoods, origin.Services: changefeed.RowService,
		origin.Customers: changefeed.RowCustomer, origin.Suppliers: changefeed.RowSupplier}
)

// extentOf is what the page of the query shows; nil where that is not known. It
// depends on each field of the query that says which rows are on the page: see
// TestEachFieldOfAQueryIsHandled.
func extentOf(q *origin.Query, shown *origin.Shown) *freshness.Extent {
	if shown == nil {
		return nil
	}
	var names origin.NameOrder
	if shown.Names != nil {
		names = *shown.Names
	}
	bound := func(p *origin.Position) freshness.Bound {
		if !p.Set {
			return freshness.Bound{Kind: freshness.Open}
		}
		key, _ := names.Key(p.Name)
		return freshness.Bound{Kind: freshness.At, CreatedAt: p.CreatedAt, NameKey: key, ID: p.ID}
	}
	e := &freshness.Extent{
		Order: extentOrders[q.Sort], Filter: stockFlags[q.Stock] | typeFlags[q.Type], Searched: q.Search != "",
		After: bound(&q.After), End: bound(&shown.End), Tags: make([]uint32, len(shown.IDs)), NameOrder: names.Digest,
	}
	for i, id := range shown.IDs {
		e.Tags[i] = freshness.Tag(id)
	}
	return e
}
