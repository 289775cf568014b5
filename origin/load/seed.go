package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/origin"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// SeedSpec says how much sample data to make. Equal specs make equal data in every database
// and at any time: each byte is the same, also of the ids.
type SeedSpec struct {
	Workspaces int
	Items      int // per workspace
	Contacts   int // per workspace
	Seed       int64
}

// The range of created_at.
var (
	seedFrom  = time.Date(2019, 1, 1, 0, 0, 0, 0, time.UTC)
	seedUntil = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// seedSpace is the namespace of the ids of sample workspaces. A workspace's id is
// the namespace of its rows' ids.
var seedSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("listedge:seed"))

// Seed makes workspaces with sample data, each in its own transaction, and returns
// their ids. It changes nothing if one of them exists. p may be nil.
func Seed(ctx context.Context, databaseURL string, spec SeedSpec, p *Progress) (workspaces []uuid.UUID, err error) {
	if p == nil {
		p = NewProgress(io.Discard)
	}
	if spec.Workspaces < 1 || spec.Items < 0 || spec.Contacts < 0 {
		return nil, errors.New("seed: wants one workspace or more, and no negative numbers")
	}
	for n := range spec.Workspaces {
		workspaces = append(workspaces, seedID(seedSpace, "workspace", uint64(spec.Seed), n))
	}
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer disconnect(conn)
	var there uuid.UUID
	switch err := conn.QueryRow(ctx, anyWorkspaceSQL, workspaces).Scan(&there); {
	case err == nil:
		return nil, errSeeded(there)
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("seed: %w", postgres.WithSchemaHint(err))
	}

	each := int64(spec.Items) + int64(spec.Contacts)
	p.begin("seed", each*int64(spec.Workspaces), rowsUnit)
	defer p.abandon()
	for n, id := range workspaces {
		before := each * int64(n)
		err := transact(ctx, conn, func(tx pgx.Tx) error { return seedWorkspace(ctx, tx, spec, n, id, before, p) })
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err() // which the server only knows as a request to cancel
			}
			return workspaces[:n], fmt.Errorf("seed: %w", err)
		}
	}
	p.phase("analyzing", 0, rowsUnit)
	if _, err := conn.Exec(ctx, analyzeSQL); err != nil { // so that the planner knows the new rows
		return workspaces, fmt.Errorf("seed: %w", err)
	}
	p.end(each*int64(spec.Workspaces), "")
	return workspaces, nil
}

func errSeeded(workspace uuid.UUID) error {
	return fmt.Errorf("workspace %s is already there; choose another --seed", workspace)
}

func seedWorkspace(ctx context.Context, tx pgx.Tx, spec SeedSpec, n int, id uuid.UUID, before int64, p *Progress) error {
	name := fmt.Sprintf("Sample workspace %d (seed %d)", n+1, spec.Seed)
	var pgErr *pgconn.PgError
	if _, err := tx.Exec(ctx, insertWorkspaceSQL, id, name, seedFrom.Add(time.Duration(n)*time.Minute)); errors.As(err, &pgErr) && pgErr.Code == "23505" { // unique_violation: another seed at the same time
		return errSeeded(id)
	} else if err != nil {
		return err
	}
	for _, c := range []origin.Collection{origin.Contacts, origin.Items} {
		s := newSample(spec, n, id, c)
		count := spec.Items
		if c == origin.Contacts {
			count = spec.Contacts
		}
		rows := before
		err := copyRows(ctx, tx, copySeedSQL(c), func(dst []byte) ([]byte, error) {
			if s.next == count {
				return dst, io.EOF
			}
			dst = s.appendRow(dst)
			rows++
			p.step(rows, rows)
			return dst, nil
		}, func() {})
		if err != nil {
			return err
		}
		before += int64(count)
	}
	return audit.Write(ctx, tx, audit.Act{Action: "seed", Workspace: &id, Details: map[string]any{
		"name": name, "seed": spec.Seed, "items": spec.Items, "contacts": spec.Contacts}})
}

// seedID derives an id from its namespace, kind, seed and number.
func seedID(space uuid.UUID, kind string, seed uint64, n int) uuid.UUID {
	name := binary.BigEndian.AppendUint64([]byte(kind), seed)
	return uuid.NewSHA1(space, binary.BigEndian.AppendUint64(name, uint64(n)))
}

// sample makes the rows of one collection of one workspace. It uses integers only:
// floating point may differ between processors.
type sample struct {
	collection origin.Collection
	workspace  uuid.UUID
	contacts   int
	random     *rand.Rand
	next       int // number of the next row

	values  map[string][]byte // of the current row, by column; absent = null
	name    string            // of the previous row
	created time.Time         // of the previous row
}

func newSample(spec SeedSpec, n int, workspace uuid.UUID, c origin.Collection) *sample {
	stream := uint64(n)<<1 | uint64(c)
	return &sample{collection: c, workspace: workspace, contacts: spec.Contacts,
		random: rand.New(rand.NewPCG(uint64(spec.Seed), stream)), values: map[string][]byte{}}
}

// oneIn is true with probability 1/n.
func (s *sample) oneIn(n int) bool { return s.random.IntN(n) == 0 }

func (s *sample) one(of []string) string { return of[s.random.IntN(len(of))] }

// suppliers is the distance from one supplier to the next among the contacts: every fourth
// contact is one. Items refer to suppliers.
const suppliers = 4

func (s *sample) appendRow(dst []byte) []byte {
	clear(s.values)
	s.set("id", seedID(s.workspace, s.collection.String(), 0, s.next).String())
	if s.collection == origin.Items {
		s.item()
	} else {
		s.contact()
	}
	s.setBool("active", !s.oneIn(30))
	if s.next == 0 || !s.oneIn(8) { // else made at the same instant as the row before
		span := seedUntil.Sub(seedFrom).Milliseconds()
		s.created = seedFrom.Add(time.Duration(s.random.Int64N(span)) * time.Millisecond)
	}
	s.values["created_at"] = appendInstant(nil, s.created)
	s.next++

	dst = append(dst, s.workspace.String()...)
	for _, c := range s.collection.Columns() {
		dst = append(dst, '\t')
		if v, there := s.values[c.Name]; there {
			dst = appendText(dst, v)
		} else {
			dst = append(dst, copyNull...)
		}
	}
	return append(dst, '\n')
}

func (s *sample) set(column, value string) { s.values[column] = append(s.values[column], value...) }

func (s *sample) setBool(column string, value bool) { s.set(column, strconv.FormatBool(value)[:1]) }

// setDecimal sets n / 10^scale with all its decimals.
func (s *sample) setDecimal(column string, n int64, scale int) {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	digits := fmt.Sprintf("%0*d", scale+1, n)
	point := len(digits) - scale
	if scale > 0 {
		digits = digits[:point] + "." + digits[point:]
	}
	s.set(column, sign+digits)
}

func (s *sample) language() *language {
	at := s.random.IntN(100)
	languages := words().Languages
	for i := range languages {
		if at -= languages[i].Share; at < 0 {
			return &languages[i]
		}
	}
	panic("BUG: shares of languages are less than 100")
}

func (s *sample) item() {
	w := s.language()
	noun, adjective := s.one(w.Nouns), s.one(w.Adjectives)
	product := adjective + w.Joint + noun
	if w.After {
		product = noun + w.Joint + adjective
	}
	product += s.one(words().Variants)
	if s.oneIn(60) {
		product += " " + s.one(words().Emoji)
	}
	if s.next == 0 || !s.oneIn(25) { // else of the same name as the row before
		s.name = product
	}
	s.set("name", s.name)

	service := s.oneIn(20)
	s.set("type", map[bool]string{true: "SERVICE", false: "GOODS"}[service])
	if !s.oneIn(10) {
		s.set("sku", fmt.Sprintf("%c%c-%06d", 'A'+s.random.IntN(26), 'A'+s.random.IntN(26), s.random.IntN(1_000_000)))
	}
	if !s.oneIn(3) {
		s.set("description", strings.ReplaceAll(s.one(w.Sentences), "%s", s.name))
	}
	if !service && !s.oneIn(6) {
		s.set("unit", s.one(w.Units))
	}
	if s.oneIn(3) {
		s.set("image_path", fmt.Sprintf("/images/%02x/%06x.jpg", s.random.IntN(256), s.random.IntN(1<<24)))
	}
	if s.contacts > 0 && !s.oneIn(3) {
		supplier := suppliers * s.random.IntN((s.contacts+suppliers-1)/suppliers)
		s.set("preferred_contact_id", seedID(s.workspace, origin.Contacts.String(), 0, supplier).String())
	}

	// Prices from cents to thousands, small ones most often, of several scales.
	cents := 1 + s.random.Int64N([]int64{500, 2_000, 10_000, 100_000, 1_000_000}[s.random.IntN(5)])
	switch s.random.IntN(12) {
	case 0:
		s.setDecimal("cost_price", cents/100, 0)
	case 1:
		s.setDecimal("cost_price", cents*100+s.random.Int64N(100), 4)
	case 2:
		s.setDecimal("cost_price", 0, s.random.IntN(3))
	default:
		s.setDecimal("cost_price", cents, 2)
	}
	s.setDecimal("avg_cost", cents*100*(95+s.random.Int64N(11))/100, 4)
	s.setDecimal("selling_price", cents*(110+s.random.Int64N(150))/100, 2)
	s.setBool("taxable", !s.oneIn(7))
	s.stock(service)
}

func (s *sample) stock(service bool) {
	tracked := !service && !s.oneIn(4)
	s.setBool("track_stock", tracked)
	if !tracked {
		s.setDecimal("stock_on_hand", 0, 0)
		s.setDecimal("usage_30", 0, 0)
		return
	}
	scale, one := 0, int64(1)
	for s.oneIn(6) && scale < 3 { // some things are weighed
		scale, one = scale+1, one*10
	}
	reorder := 5 + s.random.Int64N(50)
	onHand := (reorder+1)*one + s.random.Int64N(400*one)
	switch s.random.IntN(50) {
	case 0: // low
		onHand = s.random.Int64N(reorder*one + 1)
	case 1: // more was sold than was entered as received
		onHand = -1 - s.random.Int64N(20*one)
	}
	s.setDecimal("stock_on_hand", onHand, scale)
	if !s.oneIn(3) {
		s.setDecimal("reorder_point", reorder, 0)
	}
	s.setDecimal("usage_30", max(0, s.random.Int64N(300*one)-60*one), scale)
}

func (s *sample) contact() {
	w := s.language()
	family := s.one(w.Family)
	name := strings.ReplaceAll(s.one(w.Firms), "%s", family)
	if person := s.one(w.Given); s.oneIn(2) {
		switch {
		case w.FamilyLast:
			name = person + " " + family
		default:
			name = family + w.Joint + person
		}
	}
	if s.next == 0 || !s.oneIn(25) { // else of the same name as the row before
		s.name = name
	}
	s.set("name", s.name)
	if !s.oneIn(4) {
		s.set("email", fmt.Sprintf("%s%d@example.%s", s.one([]string{"info", "sales", "orders", "office", "hello", "köln"}), s.random.IntN(100_000), s.one([]string{"com", "org", "net"})))
	}
	if !s.oneIn(4) {
		phone := []byte(w.Phone)
		for i, c := range phone {
			if c == '#' {
				phone[i] = byte('0' + s.random.IntN(10))
			}
		}
		s.values["phone"] = phone
	}
	if !s.oneIn(3) {
		s.set("address", fmt.Sprintf("%s %d, %s", s.one(w.Streets), 1+s.random.IntN(200), s.one(w.Cities)))
	}
	if !s.oneIn(2) {
		s.set("tin", fmt.Sprintf("%c%c%09d", 'A'+s.random.IntN(26), 'A'+s.random.IntN(26), s.random.IntN(1_000_000_000)))
	}
	supplier := s.next%suppliers == 0
	s.setBool("is_supplier", supplier)
	s.setBool("is_customer", !supplier || s.oneIn(5))
}
