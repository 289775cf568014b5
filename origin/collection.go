package origin

import "github.com/jackc/pgx/v5/pgtype"

// Kind is a column's type. It decides the column's type in Postgres and the form of
// its values in JSON and in import files.
type Kind uint8

// The kinds, and their form in JSON.
const (
	Text    Kind = iota // JSON string
	UUID                // JSON string
	Decimal             // JSON string, digits as stored
	Number              // JSON number, digits as stored
	Bool                // JSON bool
	Instant             // JSON string, UTC, three decimals
)

// The schema (since migration 8) and imports refuse values above these two bounds.
// Rows from before that migration may exceed them.
const (
	MaxText   = 64 << 10 // bytes of a text
	MaxDigits = 1000     // digits of a number before the decimal point, and as many after it: the limit of numeric(p, s)
)

// MaxNumber is the largest Number (migration 7). Most clients read JSON numbers as
// doubles, and a double does not hold larger integers exactly.
const MaxNumber = "9007199254740991"

// Column is one field of a row.
type Column struct {
	Field    string // its name in the API and in import files
	Name     string // its name in the table
	Kind     Kind
	Nullable bool
	Hidden   bool // imported, but never listed

	prefix string // precedes the value in a row's JSON: `,"field":`
}

// columns are the columns of both collections, in the order of the API.
// Statements, encoding and imports are derived from this table.
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

// withPrefixes sets the prefix of each column. That of the first begins with a brace.
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

// format is the wire format that rows are read in. Decimals are read as text,
// because the API shows the digits as the server writes them.
func (k Kind) format() int16 {
	if k == Decimal || k == Number {
		return pgtype.TextFormatCode
	}
	return pgtype.BinaryFormatCode
}
