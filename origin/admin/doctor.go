package admin

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

//go:embed doctor.sql
var doctorSQL string

// Risk is what a node does not notice in Postgres before it harms.
type Risk struct {
	Subject string
	Grave   bool    // the doctor fails because of it
	Fine    string  // how it is while there is no risk
	Why     *string // nil = there is none
	Remedy  string
}

// Risks returns those of a fleet of so many nodes, with the slot of its region and so many
// connections for each.
func Risks(ctx context.Context, db querier, region string, connections, nodes int) ([]Risk, error) {
	rows, _ := db.Query(ctx, doctorSQL, pgx.QueryExecModeExec, follower.SlotPrefix, follower.SlotSuffix(region), lists.Tables(), connections, nodes)
	risks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Risk])
	if err != nil {
		return nil, fmt.Errorf("read the system catalogs: %w", postgres.Classify(err))
	}
	return risks, nil
}
