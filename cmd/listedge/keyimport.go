package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/origin/admin"
	"listedge/origin/apikey"
)

type keyImport struct {
	ChangeFlags
	jsonFlag
	ListsFlag
	Workspace uuid.UUID     `help:"Workspace of the keys." required:""`
	Hash      apikey.Digest `help:"Hash function of the file: sha256 or sha512." enum:"sha256,sha512" required:"" placeholder:"NAME"`
	Behind    string        `help:"The hash is of what follows the first such character of a key; of all of it if not given." placeholder:"CHAR"`
	File      string        `arg:"" help:"CSV with a header: hash,name,scopes and perhaps rate, burst, expires; - is standard input."`
}

// Validate refuses what is no character that a key can have.
func (c *keyImport) Validate() error {
	if c.Behind != "" && (len(c.Behind) > 1 || c.Behind <= " " || c.Behind > "~") {
		return errors.New("--behind must be one printable character of ASCII")
	}
	return nil
}

// imported is what a command has imported.
type imported struct {
	WorkspaceID uuid.UUID   `json:"workspaceId"`
	Imported    int         `json:"imported"`
	Keys        []admin.Key `json:"keys"`
}

// Run imports all keys of the file, or says what is wrong with each line.
func (c *keyImport) Run(ctx acting, t *terminal, a *admin.Conn) error {
	file := os.Stdin
	if c.File != "-" {
		opened, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer opened.Close()
		file = opened
	}
	r := keyReader{digest: c.Hash, scopes: c.Description.Scopes(), now: time.Now(), lines: map[apikey.Hash]int{}}
	err := r.read(file)
	if err != nil {
		return err
	}
	stored, err := a.Stored(ctx, r.hashes)
	if err != nil {
		return err
	}
	for _, h := range r.hashes {
		if stored[h] {
			r.refuse(r.lines[h], errors.New("a key with this hash is stored already"))
		}
	}
	if len(r.bad) > 0 {
		return r.mistakes()
	}
	made, err := a.ImportKeys(ctx, c.Workspace, apikey.Form{Digest: c.Hash, Behind: c.Behind}, r.keys)
	return c.print(t, imported{c.Workspace, len(made), made}, err, "imported {{.Imported}} keys\n")
}

// keyReader reads a file of keys.
type keyReader struct {
	digest apikey.Digest
	scopes []string // that are known
	now    time.Time

	keys   []admin.ImportedKey
	hashes []apikey.Hash // of all lines that have one
	lines  map[apikey.Hash]int
	bad    []badLine
}

type badLine struct {
	line int
	why  error
}

// refuse notes what is wrong with a line.
func (r *keyReader) refuse(line int, why error) { r.bad = append(r.bad, badLine{line, why}) }

// mistakes are all that is wrong with the file.
func (r *keyReader) mistakes() error {
	slices.SortStableFunc(r.bad, func(a, b badLine) int { return a.line - b.line })
	var all list.Mistakes
	for _, b := range r.bad {
		all = append(all, fmt.Sprintf("line %d: %s", b.line, strings.TrimPrefix(b.why.Error(), "--")))
	}
	return append(all, "nothing was imported")
}

// fields are those that a file has, in the order of its lines: of the optional ones any.
const requiredFields, allFields = "hash name scopes", "hash name scopes rate burst expires"

// read reads the whole file. Its error is that of the file or of its header; what is wrong with other lines is noted.
func (r *keyReader) read(file io.Reader) error {
	lines := csv.NewReader(file)
	header, err := lines.Read()
	if err != nil {
		return fmt.Errorf("read the header of the file, such as hash,name,scopes: %w", err)
	}
	header[0] = strings.TrimPrefix(header[0], "\ufeff") // of a spreadsheet
	for i, name := range header {
		if !slices.Contains(strings.Fields(allFields), name) || slices.Contains(header[:i], name) {
			return fmt.Errorf("line 1: the header has %q; known are %s, each once", name, strings.ReplaceAll(allFields, " ", ","))
		}
	}
	for _, name := range strings.Fields(requiredFields) {
		if !slices.Contains(header, name) {
			return fmt.Errorf("line 1: the header lacks %s", name)
		}
	}
	for {
		values, err := lines.Read()
		damaged := (*csv.ParseError)(nil)
		switch {
		case errors.Is(err, io.EOF) && len(r.hashes)+len(r.bad) == 0:
			return errors.New("the file has no keys")
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &damaged):
			r.refuse(damaged.StartLine, damaged.Err)
			if !errors.Is(err, csv.ErrFieldCount) {
				return nil // it is not certain where the next line begins
			}
			continue
		case err != nil:
			return fmt.Errorf("read the file: %w", err)
		}
		line, _ := lines.FieldPos(0)
		row := map[string]string{}
		for i, name := range header {
			row[name] = strings.TrimSpace(values[i])
		}
		r.add(line, row)
	}
}

// add adds the key of a line, or notes all that is wrong with it.
func (r *keyReader) add(line int, row map[string]string) {
	k, known := admin.ImportedKey{Name: row["name"], Scopes: strings.Split(row["scopes"], ",")}, len(r.bad)
	check := func(err error) {
		if err != nil {
			r.refuse(line, err)
		}
	}
	var err error
	k.Hash, err = r.digest.Parse(row["hash"])
	check(err)
	if before := r.lines[k.Hash]; before > 0 {
		check(fmt.Errorf("line %d has the same hash", before))
	} else if err == nil {
		r.lines[k.Hash], r.hashes = line, append(r.hashes, k.Hash)
	}
	check(validName(k.Name))
	if len(k.Name) > admin.MaxTextSize {
		check(errors.New("the name is too long"))
	}
	check(validScopes(k.Scopes, r.scopes))
	slices.Sort(k.Scopes)
	k.Scopes = slices.Compact(k.Scopes)
	var flags LimitFlags
	flags.Rate, err = optional(row["rate"], func(text string) (float64, error) { return strconv.ParseFloat(text, 64) })
	check(numberError("rate", row["rate"], err))
	flags.Burst, err = optional(row["burst"], wholeNumber[int32])
	check(numberError("burst", row["burst"], err))
	check(flags.Validate())
	limit := apikey.LimitOf(flags.Rate, flags.Burst, apikey.DefaultLimit)
	k.Rate, k.Burst = limit.Rate, limit.Burst
	k.ExpiresAt, err = optional(row["expires"], parseInstant)
	if err != nil {
		check(fmt.Errorf("expires is %q, and must be like 2027-01-31 or 2027-01-31T12:00:00Z", row["expires"]))
	} else if k.ExpiresAt != nil && !k.ExpiresAt.After(r.now) {
		check(fmt.Errorf("it expired at %s", instant(k.ExpiresAt)))
	}
	if len(r.bad) == known {
		r.keys = append(r.keys, k)
	}
}

// optional reads a value; nil = it is empty, or cannot be read.
func optional[T any](text string, parse func(string) (T, error)) (*T, error) {
	if text == "" {
		return nil, nil
	}
	v, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

func numberError(field, text string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s is %q, which is no number, or none that it can be", field, text)
}

// parseInstant reads a moment, or a day, which begins in UTC.
func parseInstant(text string) (time.Time, error) {
	day, err := time.Parse(time.DateOnly, text)
	if err == nil {
		return day, nil
	}
	return time.Parse(time.RFC3339, text)
}
