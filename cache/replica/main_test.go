package replica_test

import (
	"math/rand/v2"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// testTable is the rows of a tenant.
var testTable = changefeed.Table{List: listtest.Items, Tenant: "1"}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

func positionIn(k *replica.Key, row *list.Row) list.Position {
	return k.Table.List.Position(row, k.Order)
}
