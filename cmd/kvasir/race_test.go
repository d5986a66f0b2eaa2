//go:build race

package main

// raced says that the program under test is built with the race detector, as its tests are.
const raced = true
