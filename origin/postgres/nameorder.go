package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/jackc/pgx/v5"
)

// NameKeyLength is how many characters of a name count for the order of names. So many
// fit into a cursor even if each takes four bytes. The function name_key in the schema
// has the same number.
const NameKeyLength = 80

// NameOrder is the order of lists by name, for names of printable ASCII characters. It
// has the rank of each such character; upper and lower case have the same rank. The zero
// NameOrder has no ranks.
//
// Such names are compared by the ranks of their characters, one after the other. No
// character is ignored, and none has another rank next to a certain character. Names of
// equal ranks are equal. nameorder.sql checks this in the database for all pairs of
// characters. Names with other characters have no key: accents, contractions and
// normalization change the order of the characters next to them.
type NameOrder struct {
	Digest uint32 // of the ranks; keys of the same digest can be compared; 0 = no name has a key

	ranks [128]byte // by character; 0 = not printable
}

// ErrNameOrder: the database sorts names otherwise than the schema.
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
	if err := conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&known, &ranks, &server); err != nil { // not prepared, because a pooler may change the session
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

// Key returns a key by which names are sorted. Keys of one Digest, compared as bytes,
// have the order of the names in the list by name. Rows with equal keys are sorted by
// their ids. ok is false, and the key empty, if the name has no key.
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
