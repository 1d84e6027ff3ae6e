# Read by ctest when it knows all tests. What these see depends on how fast several processes or threads get on, so nothing else
# runs beside them.
foreach(test AreNotHeldUpByADeath AnswerWhileTheOneTheyWaitForIsStopped ComputeAPromptThatComesToAllAtOnceOnce ComputeItEachWithoutTheOption)
  set_tests_properties(tools.SingleFlightOfEngines.${test} PROPERTIES RUN_SERIAL ON)
endforeach()
foreach(test ADomainWhoseRequestsAreReadAndRefusedTakesAFewHundredthsOfTheTime ADomainWithMuchThatIsLeftTakesLittleOfTheTime
        ATurnThatWasLeftIsTakenBeforeAnybodyHelps EachTurnThatWasLeftIsTakenBeforeAnybodyHelps)
  set_tests_properties(port.PortTest.${test} PROPERTIES RUN_SERIAL ON)
endforeach()
