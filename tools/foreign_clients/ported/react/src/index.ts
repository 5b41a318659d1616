// The suite tries the released package, not the sources beside it.
export * from "@langchain/react";
