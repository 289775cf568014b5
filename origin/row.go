package origin

import (
	"errors"
	"fmt"

	"listedge/internal/lists"
	"listedge/origin/postgres"
)

// The schema and imports refuse values above these two bounds.
const (
	MaxText   = 64 << 10 // bytes of a text
	MaxDigits = 1000     // digits of a number before the decimal point, and as many after it: the limit of numeric(p, s)
)

// MaxNumber is the largest Number. Most clients read JSON numbers as
// doubles, and a double does not hold larger integers exactly.
const MaxNumber = "9007199254740991"

// A row has the values of its columns as Postgres sends them in binary; nil is NULL.

// rowError says what an error of a row means for the page: a row that cannot be shown, or a
// server that does not speak as Postgres does.
func rowError(err error) error {
	if errors.Is(err, lists.ErrBounds) {
		return fmt.Errorf("%w: %w", postgres.ErrRow, err)
	}
	return fmt.Errorf("%w: %w", postgres.ErrProtocol, err)
}
