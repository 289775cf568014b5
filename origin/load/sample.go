package load

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/origin"
)

// sample makes the rows of one collection of one workspace. It uses integers only:
// floating point may differ between processors.
type sample struct {
	collection origin.Collection
	workspace  uuid.UUID
	contacts   int
	random     *rand.Rand
	next       int // number of the next row

	values  map[string]any // of the current row, by column; absent = null
	name    string         // of the previous row
	created time.Time      // of the previous row
}

func newSample(spec SeedSpec, n int, workspace uuid.UUID, c origin.Collection) *sample {
	stream := uint64(n)<<1 | uint64(c)
	return &sample{collection: c, workspace: workspace, contacts: spec.Contacts,
		random: rand.New(rand.NewPCG(uint64(spec.Seed), stream)), values: map[string]any{}}
}

// oneIn is true with probability 1/n.
func (s *sample) oneIn(n int) bool { return s.random.IntN(n) == 0 }

func (s *sample) one(of []string) string { return of[s.random.IntN(len(of))] }

// suppliers is the distance from one supplier to the next among the contacts: every fourth
// contact is one. Items refer to suppliers.
const suppliers = 4

// row returns the values of the next row: its workspace, then every column.
func (s *sample) row() []any {
	clear(s.values)
	s.values["id"] = seedID(s.workspace, s.collection.String(), 0, s.next)
	if s.collection == origin.Items {
		s.item()
	} else {
		s.contact()
	}
	s.values["active"] = !s.oneIn(30)
	if s.next == 0 || !s.oneIn(8) { // else made at the same instant as the row before
		span := seedUntil.Sub(seedFrom).Milliseconds()
		s.created = seedFrom.Add(time.Duration(s.random.Int64N(span)) * time.Millisecond)
	}
	s.values["created_at"] = s.created
	s.next++

	row := []any{s.workspace}
	for _, c := range s.collection.Columns() {
		row = append(row, s.values[c.Name])
	}
	return row
}

// decimal returns n / 10^scale with all its decimals.
func decimal(n int64, scale int) pgtype.Numeric {
	return pgtype.Numeric{Int: big.NewInt(n), Exp: int32(-scale), Valid: true}
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
	s.values["name"] = s.name

	service := s.oneIn(20)
	s.values["type"] = map[bool]string{true: "SERVICE", false: "GOODS"}[service]
	if !s.oneIn(10) {
		s.values["sku"] = fmt.Sprintf("%c%c-%06d", 'A'+s.random.IntN(26), 'A'+s.random.IntN(26), s.random.IntN(1_000_000))
	}
	if !s.oneIn(3) {
		s.values["description"] = strings.ReplaceAll(s.one(w.Sentences), "%s", s.name)
	}
	if !service && !s.oneIn(6) {
		s.values["unit"] = s.one(w.Units)
	}
	if s.oneIn(3) {
		s.values["image_path"] = fmt.Sprintf("/images/%02x/%06x.jpg", s.random.IntN(256), s.random.IntN(1<<24))
	}
	if s.contacts > 0 && !s.oneIn(3) {
		supplier := suppliers * s.random.IntN((s.contacts+suppliers-1)/suppliers)
		s.values["preferred_contact_id"] = seedID(s.workspace, origin.Contacts.String(), 0, supplier)
	}

	// Prices from cents to thousands, small ones most often, of several scales.
	cents := 1 + s.random.Int64N([]int64{500, 2_000, 10_000, 100_000, 1_000_000}[s.random.IntN(5)])
	switch s.random.IntN(12) {
	case 0:
		s.values["cost_price"] = decimal(cents/100, 0)
	case 1:
		s.values["cost_price"] = decimal(cents*100+s.random.Int64N(100), 4)
	case 2:
		s.values["cost_price"] = decimal(0, s.random.IntN(3))
	default:
		s.values["cost_price"] = decimal(cents, 2)
	}
	s.values["avg_cost"] = decimal(cents*100*(95+s.random.Int64N(11))/100, 4)
	s.values["selling_price"] = decimal(cents*(110+s.random.Int64N(150))/100, 2)
	s.values["taxable"] = !s.oneIn(7)
	s.stock(service)
}

func (s *sample) stock(service bool) {
	tracked := !service && !s.oneIn(4)
	s.values["track_stock"] = tracked
	if !tracked {
		s.values["stock_on_hand"] = decimal(0, 0)
		s.values["usage_30"] = decimal(0, 0)
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
	s.values["stock_on_hand"] = decimal(onHand, scale)
	if !s.oneIn(3) {
		s.values["reorder_point"] = decimal(reorder, 0)
	}
	s.values["usage_30"] = decimal(max(0, s.random.Int64N(300*one)-60*one), scale)
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
	s.values["name"] = s.name
	if !s.oneIn(4) {
		s.values["email"] = fmt.Sprintf("%s%d@example.%s", s.one([]string{"info", "sales", "orders", "office", "hello", "köln"}), s.random.IntN(100_000), s.one([]string{"com", "org", "net"}))
	}
	if !s.oneIn(4) {
		phone := []byte(w.Phone)
		for i, c := range phone {
			if c == '#' {
				phone[i] = byte('0' + s.random.IntN(10))
			}
		}
		s.values["phone"] = string(phone)
	}
	if !s.oneIn(3) {
		s.values["address"] = fmt.Sprintf("%s %d, %s", s.one(w.Streets), 1+s.random.IntN(200), s.one(w.Cities))
	}
	if !s.oneIn(2) {
		s.values["tin"] = fmt.Sprintf("%c%c%09d", 'A'+s.random.IntN(26), 'A'+s.random.IntN(26), s.random.IntN(1_000_000_000))
	}
	supplier := s.next%suppliers == 0
	s.values["is_supplier"] = supplier
	s.values["is_customer"] = !supplier || s.oneIn(5)
}
