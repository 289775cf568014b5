package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/jackc/pgx/v5"
)

// NameKeyLength is how many characters of a name order it: what fits into a cursor
// when every one of them takes four bytes. name_key in the schema is its twin.
const NameKeyLength = 80

// NameOrder is the order of lists by name, as far as it can be known outside the
// database: the ranks of the printable ASCII characters, of which upper and lower
// case have the same. The zero NameOrder knows nothing.
//
// Names of these characters alone are in the order of their ranks, character by
// character: none is ignored, none has another rank beside another one, and names of
// the same ranks are equal. nameorder.sql checks that of all pairs in the database at
// hand. Names with any other character are not compared: accents, contractions and
// normalization change the order of what is beside them.
type NameOrder struct {
	Digest uint32 // of the ranks: keys of one digest can be compared; 0 = no name has a key

	ranks [128]byte // by character; 0 = not printable
}

// ErrNameOrder: the database orders names in another way than the schema says.
var ErrNameOrder = errors.New("names are not in the schema's order: the collation name_order is another one, or its ICU is")

// nameOrderSQL selects whether the collation is the schema's, and the ranks of the
// characters from the first printable one on.
//
//go:embed nameorder.sql
var nameOrderSQL string

const firstPrintable, lastPrintable = ' ', '~'

// ReadNameOrder reads the order from the database, which takes the server some 15 ms.
// Errors: ErrNameOrder, those of the connection.
func ReadNameOrder(ctx context.Context, conn *pgx.Conn) (NameOrder, error) {
	o, _, err := ReadServerNameOrder(ctx, conn)
	return o, err
}

// ReadServerNameOrder also returns which server answered, unless the connection failed.
func ReadServerNameOrder(ctx context.Context, conn *pgx.Conn) (o NameOrder, by Server, err error) {
	var known bool
	var ranks []int32
	var server string
	sql := "SELECT names.*, " + ServerSQL + " FROM (" + nameOrderSQL + ") names"
	if err := conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&known, &ranks, &server); err != nil { // a pooler may forget what is prepared
		return o, by, fmt.Errorf("read the order of names: %w", err)
	}
	by = ParseServer(server, conn)
	if !known || len(ranks) != lastPrintable-firstPrintable+1 {
		return o, by, ErrNameOrder
	}
	for i, rank := range ranks {
		o.ranks[firstPrintable+i] = byte(rank)
	}
	o.Digest = max(1, crc32.ChecksumIEEE(o.ranks[:]))
	return o, by, nil
}

// Key is what orders the name: keys of one Digest compare, as bytes, as the names do
// in the list by name, and are equal where the rows' ids order them. ok is false, and
// the key empty, of a name that has none.
func (o *NameOrder) Key(name string) (key string, ok bool) {
	var ranks [NameKeyLength]byte
	name = name[:min(len(name), NameKeyLength)] // if these bytes are ASCII they are the characters that name_key keeps
	for i := range len(name) {
		c := name[i]
		if c >= byte(len(o.ranks)) || o.ranks[c] == 0 {
			return "", false
		}
		ranks[i] = o.ranks[c]
	}
	return string(ranks[:len(name)]), name != ""
}
