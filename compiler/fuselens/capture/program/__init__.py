"""What a program says to the compiler: marks of sizes, stances, switches."""
