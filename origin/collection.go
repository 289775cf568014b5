package origin

import "github.com/jackc/pgx/v5/pgtype"

// Kind is how a column's values look: in Postgres, in JSON and in files.
type Kind uint8

// The kinds.
const (
	Text    Kind = iota // JSON string
	UUID                // JSON string
	Decimal             // JSON string, digits as stored
	Number              // JSON number, digits as stored
	Bool                // JSON bool
	Instant             // JSON string, UTC, three decimals
)

// The schema refuses rows beyond these two bounds (migration 8), as imports do.
// Rows that are older than that migration may be larger.
const (
	MaxText   = 64 << 10 // bytes of a text
	MaxDigits = 1000     // of a number, before the point and after it: as many as numeric(p, s) can be declared with
)

// MaxNumber is the largest Number: most clients read JSON numbers as doubles,
// which hold no larger integers exactly (migration 7).
const MaxNumber = "9007199254740991"

// Column is one field of a row.
type Column struct {
	Field    string // its name in the API and in import files
	Name     string // its name in the table
	Kind     Kind
	Nullable bool
	Hidden   bool // imported, but never listed

	prefix string // of its value in a row's JSON
}

// Columns of both collections, in the order of the API. Statements, encoding and
// imports follow this table.
var columns = [...][]Column{
	Items: withPrefixes([]Column{
		{Field: "id", Name: "id", Kind: UUID},
		{Field: "name", Name: "name", Kind: Text},
		{Field: "type", Name: "type", Kind: Text},
		{Field: "sku", Name: "sku", Kind: Text, Nullable: true},
		{Field: "description", Name: "description", Kind: Text, Nullable: true},
		{Field: "unit", Name: "unit", Kind: Text, Nullable: true},
		{Field: "imagePath", Name: "image_path", Kind: Text, Nullable: true},
		{Field: "preferredContactId", Name: "preferred_contact_id", Kind: UUID, Nullable: true},
		{Field: "costPrice", Name: "cost_price", Kind: Decimal},
		{Field: "avgCost", Name: "avg_cost", Kind: Decimal},
		{Field: "sellingPrice", Name: "selling_price", Kind: Decimal},
		{Field: "taxable", Name: "taxable", Kind: Bool},
		{Field: "trackStock", Name: "track_stock", Kind: Bool},
		{Field: "stockOnHand", Name: "stock_on_hand", Kind: Decimal},
		{Field: "reorderPoint", Name: "reorder_point", Kind: Decimal, Nullable: true},
		{Field: "usage30", Name: "usage_30", Kind: Number},
		{Field: "createdAt", Name: "created_at", Kind: Instant},
		{Field: "active", Name: "active", Kind: Bool, Hidden: true},
	}),
	Contacts: withPrefixes([]Column{
		{Field: "id", Name: "id", Kind: UUID},
		{Field: "name", Name: "name", Kind: Text},
		{Field: "email", Name: "email", Kind: Text, Nullable: true},
		{Field: "phone", Name: "phone", Kind: Text, Nullable: true},
		{Field: "address", Name: "address", Kind: Text, Nullable: true},
		{Field: "tin", Name: "tin", Kind: Text, Nullable: true},
		{Field: "isCustomer", Name: "is_customer", Kind: Bool},
		{Field: "isSupplier", Name: "is_supplier", Kind: Bool},
		{Field: "createdAt", Name: "created_at", Kind: Instant},
		{Field: "active", Name: "active", Kind: Bool, Hidden: true},
	}),
}

func withPrefixes(columns []Column) []Column {
	for i := range columns {
		columns[i].prefix = `,"` + columns[i].Field + `":`
	}
	columns[0].prefix = "{" + columns[0].prefix[1:]
	return columns
}

// Columns returns the columns of the collection, hidden ones last.
func (c Collection) Columns() []Column { return columns[c] }

// listed returns the columns the API shows.
func (c Collection) listed() []Column {
	all := columns[c]
	return all[:len(all)-1]
}

// oid is the Postgres type a column of the kind has.
func (k Kind) oid() uint32 {
	return [...]uint32{
		Text: pgtype.TextOID, UUID: pgtype.UUIDOID, Decimal: pgtype.NumericOID,
		Number: pgtype.NumericOID, Bool: pgtype.BoolOID, Instant: pgtype.TimestamptzOID,
	}[k]
}

// format is the wire format pages are read in. Decimals come as text: the
// server's own digits, already what the API shows.
func (k Kind) format() int16 {
	if k == Decimal || k == Number {
		return pgtype.TextFormatCode
	}
	return pgtype.BinaryFormatCode
}
